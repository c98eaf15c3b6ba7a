from reference_engine.serve import main

raise SystemExit(main())

"""The `plan` verb: judge a DEPLOY before any host is touched, and render exactly what would run."""

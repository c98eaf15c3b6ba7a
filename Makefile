# Each target calls a script that also works where make is missing.
.PHONY: rehearse rehearse-down test test-all

NODES ?= 2
FAULT ?= none
SELFTEST ?= on
DATASET ?=

rehearse:
	scripts/rehearse.sh --nodes "$(NODES)" --fault "$(FAULT)" --selftest "$(SELFTEST)" $(if $(DATASET),--dataset "$(DATASET)")

rehearse-down:
	scripts/rehearse.sh --down

test:
	scripts/test.sh

test-all:
	scripts/test.sh --all

"""The `verify-deploy` verb: a running container against its plan, field by field."""

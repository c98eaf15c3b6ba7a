"""DEPLOY: the one schema of a deployment, shared by the CLI's verbs and Ansible's group_vars."""

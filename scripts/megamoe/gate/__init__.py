"""The verdict: PASS, FAIL, INCONCLUSIVE or INVALID from evaluation output and a policy."""

"""`megamoe preflight`: judge a host before anything on it changes."""

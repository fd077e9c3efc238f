"""`make test-fresh`: the README's two commands on machines where nothing is prepared."""

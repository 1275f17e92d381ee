"""The controller's rules: what it holds, whom it elects, where replicas go, what a change leads to (S6, S12). Pure."""

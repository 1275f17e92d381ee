"""The speed tables: each module measures one part beside its peer, in one run."""

"""The tide: who has copied what, and so what is committed. Rules without sockets, files, clocks or awaits."""

"""Spark Declarative Pipelines over topics: a project in a directory, run by `tidelog pipeline`.

Pure: `templates` (the files of a new project), `progress` (what Spark says of a micro-batch), `run` (all that is known
of a run), `status` (what is known of its flows later). `project` and `checkpoints` read and write files, `journal`
keeps a run for `status`, and `lock` keeps out a second run; `needs` looks for Java, `starting` starts Spark, `running`
hands the project to it, `display` shows it. Nothing here imports pyspark until Spark is used.
"""

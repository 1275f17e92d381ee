"""What a broker counts and measures, and the page of it that Prometheus reads.

A metric that Kafka has too gets the name that the usual rules of the JMX exporter make of Kafka's MBean, so that
dashboards made for Kafka find it: kafka.network:type=RequestMetrics,name=LocalTimeMs,request=Produce is
kafka_network_requestmetrics_localtimems{request="Produce"}, and a rate, whose name ends with PerSec, is a counter whose
name ends with _total. Offsets of groups have the names of kafka_exporter. All others begin with tidelog_.

Each name is declared where its metric is made, with a line of help; docs/METRICS.md lists all of them.

| module | what is in it |
|---|---|
| `registry` | all metrics of a process: declares them, and makes the page in pieces |
| `families` | the series of one name: counters, gauges, and series that are found when the page is made |
| `summary` | how long something took: count, sum, and quantiles of the last minute |
| `text` | names, labels and numbers as Prometheus reads them |
"""

from tidelog.metrics.families import COUNTER, Counter, Found
from tidelog.metrics.registry import Metrics
from tidelog.metrics.summary import Summary

__all__ = ["COUNTER", "Counter", "Found", "Metrics", "Summary"]

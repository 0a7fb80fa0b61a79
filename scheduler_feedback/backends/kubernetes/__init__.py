"""The Kubernetes backend: the core places gangs of pods, and this package binds them over the API server.

``objects`` translates Kubernetes objects into the core's terms, and ``api_server`` has the client, the watches, the
informer cache and the leader lease. ``attempts`` binds and stops gangs and probes nodes. ``published`` writes the
core's decisions on objects and reads them back after a restart. ``kubernetes_backend`` combines these, and ``agents``
announces the agents' pods to the feed. If another scheduler places the pods, ``advisor`` is the backend: it only
observes gangs and writes advice.
"""

from scheduler_feedback.backends.kubernetes.advisor import AdvisorBackend
from scheduler_feedback.backends.kubernetes.api_server.client import Access, from_kubeconfig, in_cluster
from scheduler_feedback.backends.kubernetes.kubernetes_backend import KubernetesBackend

__all__ = ["Access", "AdvisorBackend", "KubernetesBackend", "from_kubeconfig", "in_cluster"]

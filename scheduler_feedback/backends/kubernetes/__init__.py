"""The Kubernetes backend: gangs of pods, placed by the core and bound over the API server.

``quantities``, ``constraints`` and ``translate`` are pure: objects in, the core's words out; so are ``marks`` and
``rebuild``, which are the way back. ``client`` and ``watch`` speak to the server, ``world`` is what it last said. With
``attempt``, ``binding`` and ``stopping`` a gang comes and goes, as ``carrying`` has it over the ``connection``;
``backend`` puts them together; ``probing`` makes the pods that measure nodes. ``lease`` says who acts, ``publish``
tells what the core thinks, ``uninstall`` takes it all away; ``agents`` shows the feed its agents, and ``naming`` says
which gangs their pods are of. Where another schedules, ``advisor`` is the backend instead: ``foreign`` finds that one's
gangs, and ``advice`` is what they are told.
"""

from scheduler_feedback.backends.kubernetes.advisor import AdvisorBackend
from scheduler_feedback.backends.kubernetes.api_server.client import Access, from_kubeconfig, in_cluster
from scheduler_feedback.backends.kubernetes.kubernetes_backend import KubernetesBackend

__all__ = ["Access", "AdvisorBackend", "KubernetesBackend", "from_kubeconfig", "in_cluster"]

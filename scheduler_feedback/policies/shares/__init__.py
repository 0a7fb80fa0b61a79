"""Parts of slots: placement of jobs that need a share of one GPU or a part of its memory.

``part_placement`` is what the cycle calls: it places jobs with declared parts by the rules ``fgd`` and ``best-fit``.
``declared_parts`` has what a job needs and what a slot has left, ``slot_parts`` the index that chooses a slot, and
``seen_requests`` what typical jobs request. Start reading there.

``gpu_room`` has requests and the free resources of nodes, ``fragmentation`` measures how much of the free GPUs typical
requests cannot use. ``placement_rules`` and ``share_index`` place the same requests in studies, without a scheduler.
"""

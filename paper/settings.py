"""Names of what the paper compares: streams, methods, and the variants of AFAF by the settings that make them."""

STREAMS = ("split-cifar10", "sim-cifar10", "sim-cifar100", "mix")
STUDIED = ("sim-cifar10", "mix")  # where the paper's studies were made
REGULARISERS = ("ewc", "mas", "lwf")
BASELINES = (*REGULARISERS, "packnet", "spacenet")
CONTROLS = ("finetune", "isolated", "ridge", "joint")
RANDOM, LOWEST = {"method.candidates": "random"}, {"method.candidates": "lowest"}
NO_ORTHOGONAL, IN_LAST_HIDDEN = {"method.orthogonal_output": False}, {"method.candidates_in_last_hidden": True}
LAST, DENSER = {"method.l_reuse": 6}, {f"sparse.density.W_{l}": {"1-4": value} for l, value in ((1, 17), (2, 25), (3, 25))}
PROXIMAL = {"method.penalty": "proximal"}
PAIRS = "similar-pairs"
SMALL = {"network.name": "small-cnn"}

"""Sample any `MaskedLM`: energies, proposals, kernels (Algorithm 4), chains, certificates."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

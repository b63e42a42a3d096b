"""Train sequence models for their search, and draw correct samples from masked language models.

The names of this module go from text to result in one line each. The packages `search`, `sampling`,
`objectives`, `models`, `data` and `training` offer the building blocks. Nothing is imported before
it is used: `import softbeam` loads no torch.
"""

import lazy_loader

__version__ = "0.1.0"
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

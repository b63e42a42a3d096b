"""`python -m softbeam` is the command `softbeam`."""

import sys

from softbeam.cli import main

sys.exit(main())

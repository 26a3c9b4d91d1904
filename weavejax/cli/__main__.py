"""``python -m weavejax.cli``: the command without its script."""

import sys

from weavejax.cli.main import main

sys.exit(main())

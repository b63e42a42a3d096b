from .encoding import (
    Codecs as Codecs,
)
from .encoding import (
    encode as encode,
)
from .readers import (
    Example as Example,
)
from .readers import (
    read_ccg_auto as read_ccg_auto,
)
from .readers import (
    read_cmudict as read_cmudict,
)
from .readers import (
    read_columns as read_columns,
)
from .readers import (
    read_parallel as read_parallel,
)
from .readers import (
    read_supertags as read_supertags,
)
from .readers import (
    read_tsv as read_tsv,
)
from .tasks import (
    Corpus as Corpus,
)
from .tasks import (
    GraphemeToPhoneme as GraphemeToPhoneme,
)
from .tasks import (
    LetterSounds as LetterSounds,
)
from .tasks import (
    NamedEntities as NamedEntities,
)
from .tasks import (
    Stress as Stress,
)
from .tasks import (
    Supertags as Supertags,
)
from .tasks import (
    Tagging as Tagging,
)
from .tasks import (
    Task as Task,
)
from .tasks import (
    Translation as Translation,
)
from .vocabulary import (
    Subwords as Subwords,
)
from .vocabulary import (
    Vocabulary as Vocabulary,
)

from .encoding import (
    Codecs as Codecs,
    encode as encode,
)
from .readers import (
    Example as Example,
    read_ccg_auto as read_ccg_auto,
    read_cmudict as read_cmudict,
    read_columns as read_columns,
    read_parallel as read_parallel,
    read_supertags as read_supertags,
    read_tsv as read_tsv,
)
from .tasks import (
    Corpus as Corpus,
    GraphemeToPhoneme as GraphemeToPhoneme,
    LetterSounds as LetterSounds,
    NamedEntities as NamedEntities,
    Phrases as Phrases,
    Stress as Stress,
    Supertags as Supertags,
    Tagging as Tagging,
    Task as Task,
    Translation as Translation,
)
from .vocabulary import (
    Subwords as Subwords,
    Vocabulary as Vocabulary,
)

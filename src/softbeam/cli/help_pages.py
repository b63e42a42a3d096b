"""The help of the commands that train many runs, whose flags are those of recipes too."""

# What `compare` and `sweep` have in common.
MANY_RUNS = """\
  --accept-changed-inputs  go on although data or weights of runs in DIR have changed; recorded
  --search NAME     how dev is searched; so any other flag of `softbeam train RECIPE --help`
  --jobs N          processes here, 1 if not given
  --cluster WHERE   a Dask cluster: tcp://HOST:8786, tls://…, local:4, a scheduler file, .yaml
  --dashboard       print the address of the cluster's page
  --allow-module    NAME: let settings name classes of a module of your own
  --quiet           no progress
  --json            the figures as a last line of JSON
  --debug           show the traceback of an error
"""

COMPARE_HELP = f"""\
usage: softbeam compare RECIPE --try TRIAL --try TRIAL … [--seeds 1,2,3] [any field]
       softbeam compare RECIPE --preset standard

Trains each trial with each seed below --out, from first stages that they share, and prints their
figures with a test against the first, over seeds and sentences (give at least three seeds). A trial
is the name of an objective for the second stage, or a name and words of `softbeam train`:

  softbeam compare ccg --model.encoder uni --seeds 1,2,3 --try cross-entropy --try direct-loss \\
    --try "global: --objective direct-loss --finetune.objective.normalize false"

"With raw scores" is the same model and beam without normalization: of cross-entropy it is what
can be had without further training. "Whole sentences" are those without an error.

  --try TRIAL       a way to train; give it at least twice
  --preset standard more cross-entropy, scheduled sampling hard and soft, direct loss local and
                    global, beam CRF and beam-search optimization, with as many updates; 3 seeds
  --seeds LIST      seeds of each trial; without it, the one of --seed or --config, else 1
  --split NAME      what is scored: dev or test
  --out DIR         runs/compare-RECIPE; given again, finished runs are kept, stopped ones go on
{MANY_RUNS}"""


SWEEP_HELP = f"""\
usage: softbeam sweep RECIPE --over FIELD=A,B … [--seeds 1,2] [any field]

Trains a run for every combination of values and every seed below --out, and prints their figures
on dev, best first:

  softbeam sweep ccg --over pretrain.lr=0.001,0.003 --over model.hidden=64,128 --seeds 1,2

  --over FIELD=A,B  a field of the recipe and its values
  --seeds LIST      seeds of each row; without it, the one of --seed or --config, else 1
  --out DIR         runs/sweep-RECIPE; given again, finished runs are kept, stopped ones go on
{MANY_RUNS}"""

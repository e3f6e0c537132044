"""`holdfast bulk`: cancel or resume many runs, after a preview."""

from __future__ import annotations

from collections import Counter

import click

from holdfast.bulk import VERBS, BulkReport, check_verb
from holdfast.cli import acts, text
from holdfast.cli.common import Decider, decision_options, existing_store, say

EXAMPLES = 20
"""So many runs are named in the preview."""


@click.command()
@click.argument("verb", type=click.Choice(VERBS))
@click.argument("search")
@click.option("--dry-run", is_flag=True, help="Only report what would be done.")
@decision_options
def bulk(verb: str, search: str, dry_run: bool, decider: Decider) -> None:
    """Cancel or resume all runs that match SEARCH, up to 1,000 at once.

    A search is one argument, as in `holdfast list`: 'status:failed agent:recap since:24h'. What would be done to the
    runs is shown first. Runs created after that are not touched.
    """
    known = check_verb(verb)
    with existing_store(decider.url) as store:
        plan = acts.bulk(
            store, known, search, newest=None, dry_run=True, by=decider.by, why=decider.why
        )
        if not dry_run and plan.acting:
            if not decider.yes:
                _print(plan)
            decider.confirm(f"{verb} {text.count(plan.acting, 'run')}?")
        found = plan
        if not dry_run:
            found = acts.bulk(
                store,
                known,
                search,
                newest=plan.newest,
                dry_run=False,
                by=decider.by,
                why=decider.why,
            )
    done = [o.run_id for o in found.outcomes if o.acts]
    skipped = {o.run_id: o.why for o in found.outcomes if not o.acts}
    data = {
        "verb": verb,
        "dry_run": dry_run,
        "runs": done,
        "skipped": skipped,
        "has_more": found.has_more,
    }
    if dry_run and not decider.as_json:
        _print(found)
    would = "would " if dry_run else ""
    more = ["more runs may match; run the same command again"] if found.has_more else []
    say(decider.as_json, data, f"{would}{verb} {text.count(len(done), 'run')}", *more)


def _print(report: BulkReport) -> None:
    for outcome in report.outcomes[:EXAMPLES]:
        does = report.verb if outcome.acts else f"skip: {text.visible(outcome.why)}"
        click.echo(f"  {outcome.run_id}  {outcome.status}  {does}", err=True)
    if len(report.outcomes) > EXAMPLES:
        counts = Counter(o.why or report.verb for o in report.outcomes)
        said = ", ".join(f"{n} {text.visible(what)}" for what, n in counts.most_common(8))
        click.echo(f"  … in total: {said}", err=True)

"""The measured strategies, by name: every node of the language, ten compositions, and fifty in use at once.

With them the metadata that they look at: who the tenant is, which plan he pays for, and from which region he comes.
"""

from __future__ import annotations

TENANTS = 1000
PLANS = ("gold", "silver", "free")
REGIONS = ("eu", "us", "asia", "africa")

NODES = {
    "Random": "Random",
    "OldestFirst": "OldestFirst",
    "NewestFirst": "NewestFirst",
    "CustomPriority": "CustomPriority",
    "Fair": "Fair(tenant)",
    "SelectOnly": "SelectOnly(plan=gold)",
    "PreferDistinct": "PreferDistinct(tenant, 1)",
    "MaxSimultaneous": "MaxSimultaneous(tenant, 5)",
    "OrElse": "OrElse(SelectOnly(plan=gold), OldestFirst)",
}

COMPOSITIONS = {
    "fair under a cap": "MaxSimultaneous(tenant, 5, Fair(tenant))",
    "fair by region within tenant": "Fair(tenant, Fair(region))",
    "urgent first but spread over tenants": "PreferDistinct(tenant, 1, CustomPriority)",
    "strictly ordered": "MaxSimultaneous(submission, 1, OldestFirst)",
    "gold before silver before all": (
        "OrElse(SelectOnly(plan=gold, OldestFirst), OrElse(SelectOnly(plan=silver, OldestFirst), Random))"
    ),
    "a pool of its own": "SelectOnly(region=eu, SelectOnly(plan=gold, CustomPriority))",
    "caps on two keys": "MaxSimultaneous(tenant, 5, MaxSimultaneous(region, 100, Random))",
    "fair in a region": "SelectOnly(region=us, Fair(tenant, CustomPriority))",
    "spread twice": "PreferDistinct(tenant, 1, PreferDistinct(region, 2, OldestFirst))",
    "gold fair and the rest capped": (
        "OrElse(SelectOnly(plan=gold, Fair(tenant)), MaxSimultaneous(tenant, 50%, Random))"
    ),
}


def metadata_of(number: int) -> dict[str, int | str]:
    """The metadata of the submission with this number."""
    return {"tenant": f"t{number % TENANTS}", "plan": PLANS[number % 3], "region": REGIONS[number // 3 % 4]}


def priority_of(metadata: dict[str, int | str]) -> int:
    """A higher price is served sooner."""
    return -PLANS.index(str(metadata["plan"]))


def fifty() -> list[str]:
    """Fifty strategies, no two alike, each of which can be served by the submission with number 0 alone."""
    made = []
    for order in ("Random", "OldestFirst", "NewestFirst", "CustomPriority"):
        made += [
            order,
            f"SelectOnly(tenant=t0, {order})",
            f"SelectOnly(plan=gold, {order})",
            f"SelectOnly(region=eu, {order})",
            f"PreferDistinct(tenant, 1, {order})",
            f"PreferDistinct(plan, 5%, {order})",
            f"PreferDistinct(region, 20, {order})",
            f"MaxSimultaneous(tenant, 100%, {order})",
            f"MaxSimultaneous(submission, 100%, {order})",
            f"Fair(tenant, {order})",
            f"Fair(region, {order})",
            f"OrElse(SelectOnly(plan=none), {order})",
        ]
    return [*made, "MaxSimultaneous(tenant, 100%, Fair(region))", "SelectOnly(plan=gold, Fair(tenant))"]

"""The webhook's rights: by name where names are possible, and never a wildcard."""

from __future__ import annotations

from tests.support.manifests import printed


def test_there_is_no_wildcard_and_no_secret_but_one() -> None:
    """Reading all Secrets of a namespace would be reading its other tokens."""
    made = printed("rbac", "--secret", "certs")
    rules = [rule for one in made if "rules" in one for rule in one["rules"]]
    assert "*" not in str(rules)
    secrets = [rule for rule in rules if "secrets" in rule["resources"]]
    assert [(rule["verbs"], rule.get("resourceNames")) for rule in secrets] == [
        (["get", "update"], ["certs"]),
        (["create"], None),  # a creation has no name yet that could be asked for
    ]
    changing = {"create", "update", "patch", "delete"}
    changed = {name for rule in rules if changing & {*rule["verbs"]} for name in rule["resources"]}
    assert changed == {
        "secrets",
        "leases",
        "mutatingwebhookconfigurations",
        "validatingwebhookconfigurations",
    }


def test_two_releases_do_not_take_each_others_rights() -> None:
    """Applying the second leaves the first one's bindings alone."""
    first = printed("rbac")
    second = printed("rbac", "--name", "b", "--namespace", "b-system")
    cluster_wide = [
        {one["metadata"]["name"] for one in made if one["kind"].startswith("Cluster")}
        for made in (first, second)
    ]
    assert not cluster_wide[0] & cluster_wide[1]
    for made in (first, second):
        names = {one["metadata"]["name"] for one in made}
        assert len(names) == 1
        for one in made:
            for subject in one.get("subjects", ()):
                assert {subject["name"]} == names

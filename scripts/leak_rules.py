"""Write gitboot/resolve/betterleaks_patterns.py anew: what tokens of others look like, by the rules of betterleaks.

    pip install kingfisher-secret-scanner && python scripts/leak_rules.py

betterleaks, of the author of gitleaks, keeps these rules; MongoDB's kingfisher-secret-scanner has them in a package.
Taken over are those of what may come to stand in user data, and whose tokens say themselves what they are: a rule that
goes by a name beside 32 letters finds digests as well. To take over more, add a line to `WANTED`.
"""

from __future__ import annotations

import re
import sys
from importlib.metadata import version
from pathlib import Path

OUTPUT = Path(__file__).parent.parent / "gitboot" / "resolve" / "betterleaks_patterns.py"

# The rule -> what it finds, and words one of which stands in whatever it finds, in lower case.
WANTED: dict[str, tuple[str, tuple[str, ...]]] = {
    "1password-service-account-token": ("a 1Password token", ("ops_eyj",)),
    "age-secret-key": ("an age key", ("age-secret-key-1",)),
    "anthropic-api-key": ("an Anthropic key", ("sk-ant-api03",)),
    "artifactory-api-key": ("an Artifactory key", ("akcp",)),
    "artifactory-reference-token": ("an Artifactory token", ("cmvmd",)),
    "aws-access-token": ("an AWS access key", ("a3t", "akia", "asia", "abia", "acca")),
    "azure-ad-client-secret": ("an Azure client secret", ("q~",)),
    "cloudflare-api-key.2": ("a Cloudflare token", ("cfut_", "cfat_")),
    "databricks-api-token": ("a Databricks token", ("dapi",)),
    "digitalocean-pat": ("a DigitalOcean token", ("dop_v1_",)),
    "docker-swarm-join-token": ("a Docker Swarm token", ("swmtkn-1-",)),
    "docker-swarm-unlock-key": ("a Docker Swarm key", ("swmkey-1-",)),
    "dockerhub-organization-access-token": ("a Docker Hub token", ("dckr_oat_",)),
    "dockerhub-personal-access-token": ("a Docker Hub token", ("dckr_pat_",)),
    "doppler-api-token": ("a Doppler token", ("dp.pt.",)),
    "gcp-api-key": ("a Google API key", ("aiza",)),
    "github-app-token": ("a GitHub token", ("ghu_", "ghs_")),
    "github-fine-grained-pat": ("a GitHub token", ("github_pat_",)),
    "github-oauth": ("a GitHub token", ("gho_",)),
    "github-pat": ("a GitHub token", ("ghp_",)),
    "github-refresh-token": ("a GitHub token", ("ghr_",)),
    "gitlab-cicd-job-token": ("a GitLab token", ("glcbt-",)),
    "gitlab-deploy-token": ("a GitLab token", ("gldt-",)),
    "gitlab-kubernetes-agent-token": ("a GitLab token", ("glagent-",)),
    "gitlab-oauth-app-secret": ("a GitLab secret", ("gloas-",)),
    "gitlab-pat": ("a GitLab token", ("glpat-",)),
    "gitlab-ptt": ("a GitLab token", ("glptt-",)),
    "gitlab-rrt": ("a GitLab token", ("gr1348941",)),
    "gitlab-runner-authentication-token": ("a GitLab token", ("glrt-",)),
    "grafana-cloud-api-token": ("a Grafana token", ("glc_",)),
    "grafana-service-account-token": ("a Grafana token", ("glsa_",)),
    "hashicorp-tf-api-token": ("a Terraform token", ("atlasv1",)),
    "heroku-api-key-v2": ("a Heroku key", ("hrku-aa",)),
    "huggingface-access-token": ("a Hugging Face token", ("hf_",)),
    "notion-api-token": ("a Notion token", ("ntn_",)),
    "npm-access-token": ("an npm token", ("npm_",)),
    "openai-api-key": ("an OpenAI key", ("t3blbkfj",)),
    "openshift-user-token": ("an OpenShift token", ("sha256~",)),
    "pulumi-api-token": ("a Pulumi token", ("pul-",)),
    "pypi-upload-token": ("a PyPI token", ("pypi-ageichlwas5vcmc",)),
    "rubygems-api-token": ("a RubyGems key", ("rubygems_",)),
    "sendgrid-api-token": ("a SendGrid token", ("sg.",)),
    "sentry-user-token": ("a Sentry token", ("sntryu_",)),
    "shopify-access-token": ("a Shopify token", ("shpat_",)),
    "slack-app-token": ("a Slack token", ("xapp-",)),
    "slack-bot-token": ("a Slack token", ("xoxb-",)),
    "slack-legacy-token": ("a Slack token", ("xoxo-", "xoxs-")),
    "slack-legacy-workspace-token": ("a Slack token", ("xoxa-", "xoxr-")),
    "slack-user-token": ("a Slack token", ("xoxp-", "xoxe-")),
    "slack-webhook-url": ("a Slack webhook", ("hooks.slack.com",)),
    "square-access-token": ("a Square token", ("eaaa", "sq0atp-")),
    "stripe-access-token": ("a Stripe key", ("sk_test_", "sk_live_", "sk_prod_", "rk_test_", "rk_live_", "rk_prod_")),
    "tailscale-api-key.1": ("a Tailscale key", ("tskey-api-",)),
    "twilio-api-key": ("a Twilio key", ("sk",)),
    "vault-batch-token": ("a Vault token", ("hvb.",)),
    "vault-service-token": ("a Vault token", ("hvs.",)),
}

_END = r"""(?:\\?['"\x60]|[\s;]|\\[nr]|$)"""  # what may follow: where a token ends says its form

HEAD = '''"""What tokens of others look like; written by scripts/leak_rules.py from the rules of betterleaks."""

# As in kingfisher-secret-scanner {version}. betterleaks: Copyright (c) 2026 Zachary Rice, MIT License, in NOTICE.

from __future__ import annotations

from typing import Final, NamedTuple


class TokenRule(NamedTuple):
    """What one kind of token looks like."""

    what: str
    words: tuple[str, ...]  # one of which stands in it, in lower case
    pattern: str


TOKENS: Final = (
'''


def main() -> None:
    from kingfisher_sdk import Rules  # a package for this alone

    rules = Rules()
    lines = [_line(name, str(rules.detail(f"betterleaks.{name}")["pattern"])) for name in sorted(WANTED)]
    OUTPUT.write_text(HEAD.format(version=version("kingfisher-secret-scanner")) + "".join(lines) + ")\n")


def _line(name: str, pattern: str) -> str:
    what, words = WANTED[name]
    pattern = pattern.removesuffix(_END).replace(r"\z", r"\Z")
    pattern = pattern[:4] + re.sub(r"\(\?i\)([^()]*)", r"(?i:\1)", pattern[4:])
    if name == "vault-service-token":  # its other half is any s. and 24 letters
        pattern = r"\bhvs\.[\w-]{90,120}"
    if name == "azure-ad-client-secret":  # without what may stand around it
        pattern = r"(?<![\w~.])[\w~.]{3}\dQ~[\w~.-]{31,34}(?![\w~.-])"
    if name == "slack-webhook-url":
        pattern = pattern.replace("hooks.slack.com", r"hooks\.slack\.com")
    # Long lines of base64 have the words of both, and what begins with a letter is sought faster than a boundary.
    if name == "twilio-api-key":
        pattern = rf"{pattern[:2]}(?<!\w{pattern[:2]}){pattern[2:]}\b"
    if name == "aws-access-token":
        pattern = r"A(?<!\wA)(?:3T[A-Z0-9]|KIA|SIA|BIA|CCA)[A-Z2-7]{16}\b"
    if name == "hashicorp-tf-api-token":
        pattern = r"(?i:\b[a-z0-9]{14})\.atlasv1\.(?i:[a-z0-9\-_=]{60,70})"
    re.compile(pattern)
    return f"    # {name}\n    TokenRule({what!r}, {words!r}, r{_quoted(pattern)}),\n"


def _quoted(pattern: str) -> str:
    if '"' in pattern and "'" in pattern:
        raise SystemExit(f"no quotes are left for {pattern}")
    return f"'{pattern}'" if '"' in pattern else f'"{pattern}"'


if __name__ == "__main__":
    sys.exit(main())

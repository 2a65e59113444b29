"""What tokens of others look like; written by scripts/leak_rules.py from the rules of betterleaks."""

# As in kingfisher-secret-scanner 1.5.0. betterleaks: Copyright (c) 2026 Zachary Rice, MIT License, in NOTICE.

from __future__ import annotations

from typing import Final, NamedTuple


class TokenRule(NamedTuple):
    """What one kind of token looks like."""

    kind: str
    words: tuple[str, ...]  # one of which stands in it, in lower case
    pattern: str


TOKENS: Final = (
    # 1password-service-account-token
    TokenRule("a 1Password token", ("ops_eyj",), r"ops_eyJ[a-zA-Z0-9+/]{250,}={0,3}"),
    # age-secret-key
    TokenRule("an age key", ("age-secret-key-1",), r"AGE-SECRET-KEY-1[QPZRY9X8GF2TVDW0S3JN54KHCE6MUA7L]{58}"),
    # anthropic-api-key
    TokenRule("an Anthropic key", ("sk-ant-api03",), r"\b(sk-ant-api03-[a-zA-Z0-9_\-]{93}AA)"),
    # artifactory-api-key
    TokenRule("an Artifactory key", ("akcp",), r"\bAKCp[A-Za-z0-9]{68,70}\b"),
    # artifactory-reference-token
    TokenRule("an Artifactory token", ("cmvmd",), r"\bcmVmd[A-Za-z0-9]{59}\b"),
    # aws-access-token
    TokenRule(
        "an AWS access key",
        ("a3t", "akia", "asia", "abia", "acca"),
        r"A(?<!\wA)(?:3T[A-Z0-9]|KIA|SIA|BIA|CCA)[A-Z2-7]{16}\b",
    ),
    # azure-ad-client-secret
    TokenRule("an Azure client secret", ("q~",), r"(?<![\w~.])[\w~.]{3}\dQ~[\w~.-]{31,34}(?![\w~.-])"),
    # cloudflare-api-key.2
    TokenRule("a Cloudflare token", ("cfut_", "cfat_"), r"\b(cf[ua]t_[A-Za-z0-9]{40}[a-f0-9]{8})"),
    # databricks-api-token
    TokenRule("a Databricks token", ("dapi",), r"\b(dapi[a-f0-9]{32}(?:-\d)?)"),
    # digitalocean-pat
    TokenRule("a DigitalOcean token", ("dop_v1_",), r"\b(dop_v1_[a-f0-9]{64})"),
    # docker-swarm-join-token
    TokenRule("a Docker Swarm token", ("swmtkn-1-",), r"\b(SWMTKN-1-[a-z0-9]{50,60}-[a-z0-9]{24,30})"),
    # docker-swarm-unlock-key
    TokenRule("a Docker Swarm key", ("swmkey-1-",), r"\b(SWMKEY-1-[A-Za-z0-9+/]{40,50})"),
    # dockerhub-organization-access-token
    TokenRule("a Docker Hub token", ("dckr_oat_",), r"\b(dckr_oat_[A-Za-z0-9_-]{32})"),
    # dockerhub-personal-access-token
    TokenRule("a Docker Hub token", ("dckr_pat_",), r"\b(dckr_pat_[A-Za-z0-9_-]{27})"),
    # doppler-api-token
    TokenRule("a Doppler token", ("dp.pt.",), r"dp\.pt\.(?i:[a-z0-9]{43})"),
    # gcp-api-key
    TokenRule("a Google API key", ("aiza",), r"\b(AIza[\w-]{35})"),
    # github-app-token
    TokenRule("a GitHub token", ("ghu_", "ghs_"), r"(?:ghu|ghs)_[0-9a-zA-Z]{36}"),
    # github-fine-grained-pat
    TokenRule("a GitHub token", ("github_pat_",), r"github_pat_\w{82}"),
    # github-oauth
    TokenRule("a GitHub token", ("gho_",), r"gho_[0-9a-zA-Z]{36}"),
    # github-pat
    TokenRule("a GitHub token", ("ghp_",), r"ghp_[0-9a-zA-Z]{36}"),
    # github-refresh-token
    TokenRule("a GitHub token", ("ghr_",), r"ghr_[0-9a-zA-Z]{36}"),
    # gitlab-cicd-job-token
    TokenRule("a GitLab token", ("glcbt-",), r"glcbt-[0-9a-zA-Z]{1,5}_[0-9a-zA-Z_-]{20}"),
    # gitlab-deploy-token
    TokenRule("a GitLab token", ("gldt-",), r"gldt-[0-9a-zA-Z_\-]{20}"),
    # gitlab-kubernetes-agent-token
    TokenRule("a GitLab token", ("glagent-",), r"glagent-[0-9a-zA-Z_\-]{50}"),
    # gitlab-oauth-app-secret
    TokenRule("a GitLab secret", ("gloas-",), r"gloas-[0-9a-zA-Z_\-]{64}"),
    # gitlab-pat
    TokenRule("a GitLab token", ("glpat-",), r"glpat-[\w-]{20}"),
    # gitlab-ptt
    TokenRule("a GitLab token", ("glptt-",), r"glptt-[0-9a-f]{40}"),
    # gitlab-rrt
    TokenRule("a GitLab token", ("gr1348941",), r"GR1348941[\w-]{20}"),
    # gitlab-runner-authentication-token
    TokenRule("a GitLab token", ("glrt-",), r"glrt-[0-9a-zA-Z_\-]{20}"),
    # grafana-cloud-api-token
    TokenRule("a Grafana token", ("glc_",), r"\b(glc_[A-Za-z0-9+/]{40,150}={0,2})"),
    # grafana-service-account-token
    TokenRule("a Grafana token", ("glsa_",), r"\b(glsa_[A-Za-z0-9]{32}_[A-Fa-f0-9]{8})"),
    # hashicorp-tf-api-token
    TokenRule("a Terraform token", ("atlasv1",), r"(?i:\b[a-z0-9]{14})\.atlasv1\.(?i:[a-z0-9\-_=]{60,70})"),
    # heroku-api-key-v2
    TokenRule("a Heroku key", ("hrku-aa",), r"\b((HRKU-AA[0-9a-zA-Z_-]{58}))"),
    # huggingface-access-token
    TokenRule("a Hugging Face token", ("hf_",), r"\b(hf_(?i:[a-z]{34}))"),
    # notion-api-token
    TokenRule("a Notion token", ("ntn_",), r"\b(ntn_[0-9]{11}[A-Za-z0-9]{32}[A-Za-z0-9]{3})"),
    # npm-access-token
    TokenRule("an npm token", ("npm_",), r"(?i)\b(npm_[a-z0-9]{36})"),
    # openai-api-key
    TokenRule(
        "an OpenAI key",
        ("t3blbkfj",),
        r"\b(sk-(?:proj|svcacct|admin)-(?:[A-Za-z0-9_-]{74}|[A-Za-z0-9_-]{58}|[A-Za-z0-9_-]{20})T3BlbkFJ(?:[A-Za-z0-9_-]{74}|[A-Za-z0-9_-]{58}|[A-Za-z0-9_-]{20})\b|sk-[a-zA-Z0-9]{20}T3BlbkFJ[a-zA-Z0-9]{20})",
    ),
    # openshift-user-token
    TokenRule("an OpenShift token", ("sha256~",), r"\b(sha256~[\w-]{43})(?:[^\w-]|\Z)"),
    # pulumi-api-token
    TokenRule("a Pulumi token", ("pul-",), r"\b(pul-[a-f0-9]{40})"),
    # pypi-upload-token
    TokenRule("a PyPI token", ("pypi-ageichlwas5vcmc",), r"pypi-AgEIcHlwaS5vcmc[\w-]{50,1000}"),
    # rubygems-api-token
    TokenRule("a RubyGems key", ("rubygems_",), r"\b(rubygems_[a-f0-9]{48})"),
    # sendgrid-api-token
    TokenRule("a SendGrid token", ("sg.",), r"\b(SG\.(?i:[a-z0-9=_\-\.]{66}))"),
    # sentry-user-token
    TokenRule("a Sentry token", ("sntryu_",), r"\b(sntryu_[a-f0-9]{64})"),
    # shopify-access-token
    TokenRule("a Shopify token", ("shpat_",), r"shpat_[a-fA-F0-9]{32}"),
    # slack-app-token
    TokenRule("a Slack token", ("xapp-",), r"(?i)xapp-\d-[A-Z0-9]+-\d+-[a-z0-9]+"),
    # slack-bot-token
    TokenRule("a Slack token", ("xoxb-",), r"xoxb-[0-9]{10,13}-[0-9]{10,13}[a-zA-Z0-9-]*"),
    # slack-legacy-token
    TokenRule("a Slack token", ("xoxo-", "xoxs-"), r"xox[os]-\d+-\d+-\d+-[a-fA-F\d]+"),
    # slack-legacy-workspace-token
    TokenRule("a Slack token", ("xoxa-", "xoxr-"), r"xox[ar]-(?:\d-)?[0-9a-zA-Z]{8,48}"),
    # slack-user-token
    TokenRule("a Slack token", ("xoxp-", "xoxe-"), r"xox[pe](?:-[0-9]{10,13}){3}-[a-zA-Z0-9-]{28,34}"),
    # slack-webhook-url
    TokenRule(
        "a Slack webhook",
        ("hooks.slack.com",),
        r"(?:https?://)?hooks\.slack\.com/(?:services|workflows|triggers)/[A-Za-z0-9+/]{43,56}",
    ),
    # square-access-token
    TokenRule("a Square token", ("eaaa", "sq0atp-"), r"\b((?:EAAA|sq0atp-)[\w-]{22,60})"),
    # stripe-access-token
    TokenRule(
        "a Stripe key",
        ("sk_test_", "sk_live_", "sk_prod_", "rk_test_", "rk_live_", "rk_prod_"),
        r"\b((?:sk|rk)_(?:test|live|prod)_[a-zA-Z0-9]{10,99})",
    ),
    # tailscale-api-key.1
    TokenRule("a Tailscale key", ("tskey-api-",), r"\b(tskey-api-[A-Za-z0-9_-]{20,36})"),
    # twilio-api-key
    TokenRule("a Twilio key", ("sk",), r"SK(?<!\wSK)[0-9a-fA-F]{32}\b"),
    # vault-batch-token
    TokenRule("a Vault token", ("hvb.",), r"\b(hvb\.[\w-]{138,300})"),
    # vault-service-token
    TokenRule("a Vault token", ("hvs.",), r"\bhvs\.[\w-]{90,120}"),
)

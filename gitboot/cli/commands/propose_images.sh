# The first job read files of vendors, so its results are untrusted. Check all of them before the first push.
# A value of the first job reaches a command only as a quoted argument or as a file.
export LC_ALL=C
refuse() { echo "refused: $1"; exit 1; }
proposals=$(mktemp -d)
python3 -I - "$UPDATES.json" "$proposals" <<'END'
import json, os, re, sys
from pathlib import Path

def check(good, problem):
    if not good:
        sys.exit(f"refused: {problem}")

with open(os.open(sys.argv[1], os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
    text = file.read(1_000_001)
check(len(text) <= 1_000_000, "the list of proposals has more than 1 MB")
proposals = [each for each in json.loads(text)["streams"] if each.get("branch") and each.get("commit")]
check(len(proposals) <= 100, "more than 100 proposals")
for number, each in enumerate(proposals):
    texts = (each.get(name) for name in ("branch", "commit", "title", "body"))
    check(all(isinstance(text, str) for text in texts), "a proposal without texts")
    branch, title, body = each["branch"], each["title"], each["body"]
    is_ours = re.fullmatch(r"gitboot/update-[A-Za-z0-9][A-Za-z0-9._-]{0,249}", branch)
    check(is_ours, f"{branch!a} is not a branch of gitboot")
    check(re.fullmatch("[0-9a-f]{40}", each["commit"]), f"{branch}: {each['commit']!a} is not a commit")
    check(title.isprintable() and 0 < len(title) <= 255, f"{branch}: {title!a} is not a title")
    check(len(body) <= 60_000, f"{branch}: the body has more than 60000 characters")
    # GitLab removes carriage returns, also in /\rmerge.
    is_printable = body.replace("\n", "").replace("\t", "").isprintable()
    check(is_printable, f"{branch}: the body has characters that cannot be shown")
    # GitLab runs a line such as /merge. All forges skip checks for a title such as [skip ci].
    check(not re.search(r"(?m)^\s*/\w", body), f"{branch}: the body has a command")
    skips = re.search(r"(?i)\[[a-z -]*\b(ci|actions)\b[a-z -]*\]", title)
    check(not skips, f"{branch}: the title {title!a} turns off checks")
    folder = Path(sys.argv[2], f"{number:03}")
    folder.mkdir()
    for name in ("branch", "commit", "title", "body"):
        (folder / name).write_text(each[name], encoding="utf-8", errors="replace")
    if each.get("ready") is True:
        (folder / "ready").touch()
END
touch "$proposals/heads"
if [ -f "$UPDATES" ]; then
  [ ! -L "$UPDATES" ] || refuse "the bundle is a symlink"
  [ "$(wc -c < "$UPDATES")" -le 10000000 ] || refuse "the bundle has more than 10 MB"
  git bundle list-heads "$UPDATES" > "$proposals/heads"
fi
for proposal in "$proposals"/*/; do
  [ -d "$proposal" ] || break  # there is no proposal
  branch=$(cat "$proposal/branch") commit=$(cat "$proposal/commit")
  if ! grep -qxF "$commit refs/heads/$branch" "$proposals/heads"; then
    continue  # an earlier run pushed this branch
  fi
  git -c fetch.fsckObjects=true fetch --quiet --no-tags "$UPDATES" "refs/heads/$branch:refs/proposals/$branch"
  [ "$(git rev-parse "$commit^@")" = "$BASE" ] || refuse "the parent of $branch is not $BASE"
  git cat-file commit "$commit" > "$proposal/message"
  if grep -qaiE '\[[a-z -]*\b(ci|actions)\b[a-z -]*\]|skip-checks|gitboot-ack' "$proposal/message"; then
    refuse "$branch has a commit message that turns off checks, or acknowledges a guard"
  fi
  git diff-tree -r --no-renames --raw "$BASE" "$commit" > "$proposal/changes"
  case "$(wc -l < "$proposal/changes")" in
    1 | 2) ;;
    *) refuse "$branch changes more than an image and a stream" ;;
  esac
  while read -r _ mode _ _ status path; do
    case "$mode $status" in
      "100644 A" | "100644 M") ;;
      *) refuse "$branch removes a file, or adds a special file" ;;
    esac
    case "/$path" in
      "/${GITBOOT_SUBPATH:+$GITBOOT_SUBPATH/}"*) ;;
      *) refuse "$branch changes a file outside the fleet" ;;
    esac
    case "/$path" in */.* | '/"'*) refuse "$branch changes a file that is not part of the fleet" ;; esac
    case "$path" in *.yaml | *.yml) ;; *) refuse "$branch changes a file that is not a document" ;; esac
  done < "$proposal/changes"
  touch "$proposal/checked"
done
# Push the branches, and open a pull request for each proposal that is ready. Never replace a branch.
for proposal in "$proposals"/*/; do
  [ -d "$proposal" ] || break
  branch=$(cat "$proposal/branch") commit=$(cat "$proposal/commit")
  git ls-remote "$REMOTE" "refs/heads/$branch" > "$proposal/head"
  head=$(cut -f 1 "$proposal/head")
  if [ -z "$head" ] && [ -f "$proposal/checked" ]; then
    git push --quiet "$REMOTE" "$commit:refs/heads/$branch"
    head=$commit
  fi
  if [ "$head" != "$commit" ]; then
    echo "$branch has other commits now. gitboot does not change it."
  elif [ -f "$proposal/ready" ]; then
    open_pull_request
  fi
done

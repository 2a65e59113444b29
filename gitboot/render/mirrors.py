"""Configuration of nginx and Caddy for mirrors of ``boot/``; `gitboot read-access-logs` reads their logs."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final

from gitboot.render import queries
from gitboot.render.paths import (
    ARTIFACT_TYPES,
    BOOT,
    BUNDLED,
    FIRST_SCRIPT,
    IGNITION,
    TABLE,
    Role,
    Stage,
    publication_stage,
)
from gitboot.render.tree import File


def shared(outputs: Collection[str], published: Collection[str]) -> Iterator[tuple[str, File]]:
    """Yield ``ops/serve/``: a configuration for each server, the same for all Fleets with these outputs.

    ``published`` are the paths of the shared files. Publications place the first scripts last, so that a copy that has
    one is complete.
    """
    scripts = sorted(path for path in published if publication_stage(path) is Stage.FIRST_SCRIPTS)
    script = FIRST_SCRIPT if FIRST_SCRIPT in scripts else next(iter(scripts), None)
    last = script.removeprefix(BOOT) if script is not None else None
    yield "ops/serve/nginx.conf", File(_filled(_NGINX, outputs, last).encode())
    yield "ops/serve/Caddyfile", File(_filled(_CADDY, outputs, last).encode())


def _filled(text: str, outputs: Collection[str], last: str | None) -> str:
    """Return a configuration with what the table of paths says in the place of its @marks@.

    ``last`` is the path of what a copy has last; None: nothing shows that a copy is complete.
    """
    marks = {
        "nginx_maps": queries.nginx_maps(outputs),
        "nginx_aliases": queries.nginx_locations(outputs),
        "caddy_aliases": queries.caddy(outputs),
        "nginx_complete": _NGINX_COMPLETE.replace("@last@", last) if last is not None else "",
        "caddy_complete": f"\t\t\tfile /{last}\n" if last is not None else "",
        "entries": "|".join(kind.expression for kind in TABLE if kind.role in (Role.ENTRY, Role.OFFER, Role.LOOK)),
        "ignition": IGNITION.text.partition("/")[0],
        "ignition_type": IGNITION.content_type,
        "bundled": "|".join(BUNDLED),
        "bundled_paths": " ".join(f"{folder}/{name}" for folder in _BUNDLES for name in BUNDLED),
        "types": "".join(f'        "{type}" {" ".join(endings)};\n' for type, endings in _by_type()),
        "type_headers": "".join(_type_header(type, endings) for type, endings in _by_type()),
    }
    for mark, value in marks.items():
        text = text.replace(f"@{mark}@", value)
    return text


_BUNDLES: Final = ("/o/*", "*/data/*", "/nocloud/*")


def _by_type() -> list[tuple[str, list[str]]]:
    found: dict[str, list[str]] = {}
    for ending, type in ARTIFACT_TYPES.items():
        found.setdefault(type, []).append(ending)
    return list(found.items())


def _type_header(type: str, endings: list[str]) -> str:
    name = f"@{endings[0]}"
    return f'\t\t{name} path {" ".join(f"*.{each}" for each in endings)}\n\t\theader {name} Content-Type "{type}"\n'


_NGINX_COMPLETE: Final = """\
        if (!-f $document_root/@last@) {
            return 503 $gitboot_nothing;
        }
"""

_NGINX: Final = r"""# A mirror of boot/ by nginx 1.18 or newer, which answers as gitboot's endpoint does.
#
# Copy this file to /etc/nginx/conf.d/ and set the five lines that say so. `root` is the copy of boot/, made with its
# times kept (rsync --times): `gitboot read-access-logs` recognizes the version of an entry by its time.
# Behind a load balancer, set_real_ip_from and real_ip_header let nginx see who fetches.

# The instant with its fraction of a second.
map "$time_iso8601 $msec" $gitboot_at {
    "~^(?<gitboot_second>[-0-9T:]{19})(?<gitboot_offset>\S+) [0-9]+(?<gitboot_fraction>\.[0-9]+)$"
        "$gitboot_second$gitboot_fraction$gitboot_offset";
    default $time_iso8601;
}

# What `gitboot read-access-logs` reads: `modified` is the version that was sent, `complete` is OK if all of it was.
log_format gitboot escape=json
    '{"at":"$gitboot_at","client":"$remote_addr","method":"$request_method","path":"$uri","status":$status,'
    '"modified":"$sent_http_last_modified","length":"$sent_http_content_length","bytes":$body_bytes_sent,'
    '"complete":"$request_completion","query":"$args","agent":"$http_user_agent"}';

map $uri $gitboot_cache {
    "~^/(?:@entries@)$" "no-store";                 # what a machine boots: to be asked for each time
    ~^/o/ "public, max-age=31536000, immutable";    # named by its content
    ~/(data|failed|provisioned)/ "no-store";        # what only the machine asks for that is being installed
    default "no-cache";                             # changes in place
}

# `return 404 ""` has a body of nginx's own; a variable that is empty has none.
map "" $gitboot_nothing {
    default "";
}

@nginx_maps@server {
    listen 80;                                          # set: where to answer
    listen [::]:80;                                     # set: the same for IPv6
    root /srv/gitboot/boot;                             # set: the copy of boot/
    access_log /var/log/nginx/gitboot.log gitboot;      # set: what `gitboot read-access-logs` reads
    log_not_found off;

    gzip off;    # firmware and loaders need Content-Length
    etag on;
    add_header Cache-Control $gitboot_cache;

    if ($request_method !~ ^(GET|HEAD)$) {
        return 405;
    }

    # UEFI HTTP boot goes by the type of what it fetches.
    types {
@types@    }

    location / {
        default_type "text/plain; charset=utf-8";
        max_ranges 0;    # an entry is sent whole or not at all
        if (-d $request_filename) {    # a folder is neither listed nor redirected to
            return 404;
        }
    }

    # The signed list names every machine. To monitor the mirror from another host, allow its address, too.
    location ^~ /signed/ {
        allow 127.0.0.1;                                # set: who may read the signed list
        allow ::1;
        deny all;
        error_page 403 = @denied;
        error_page 404 = @nothing;
        error_page 500 = @failed;
        if (-d $request_filename) {
            return 404;
        }
    }
    location @denied {
        add_header Cache-Control "no-store" always;
        return 403 $gitboot_nothing;
    }

    # Paths whose query says for whom they are, or that have another name.
@nginx_aliases@    # What a machine boots is sent anew each time, and so stands in the log each time.
    location ~ "^/(?:@entries@)$" {
        default_type "text/plain; charset=utf-8";
        max_ranges 0;
        etag off;
        if_modified_since off;
        if ($http_if_none_match = "*") {    # nginx would answer 304 to it, whatever is off
            return 412 $gitboot_nothing;
        }
    }

    location /@ignition@/ {
        default_type @ignition_type@;
        max_ranges 0;
        if (-d $request_filename) {
            return 404;
        }
    }

    # Of these, the first that fits counts. Hidden is what is still being copied here.
    location ~ /\. {
        return 404;
    }

    location ~ ^/o/[^/]+/(@bundled@)$ {
        default_type "text/cloud-config; charset=utf-8";
        if (-d $request_filename) {
            return 404;
        }
    }

    location ~ /(?:data|nocloud)/[^/]+/(@bundled@)$ {
        default_type "text/cloud-config; charset=utf-8";
        max_ranges 0;
        if (-d $request_filename) {
            return 404;
        }
    }

    location ~ /data/ {
        default_type application/octet-stream;
        max_ranges 0;
        if (-d $request_filename) {
            return 404;
        }
    }

    location ~ ^/(o|assets)/ {
        default_type application/octet-stream;
        if (-d $request_filename) {
            return 404;
        }
    }

    # A file that is absent is one and the same 404 without a body: GRUB would run the body as configuration. A copy
    # that is being filled, or an empty mount, has no first script: there, absence does not mean that a machine is
    # unknown. Neither does a file that cannot be read.
    recursive_error_pages on;    # of the files that a query may mean, each is looked for after the other
    error_page 404 = @nothing;
    location @nothing {
        add_header Cache-Control "no-store" always;
@nginx_complete@        return 404 $gitboot_nothing;
    }

    error_page 403 500 = @failed;
    location @failed {
        add_header Cache-Control "no-store" always;
        return 503 $gitboot_nothing;
    }

    error_page 405 = @not_allowed;
    location @not_allowed {
        add_header Allow "GET, HEAD" always;
        add_header Cache-Control "no-store" always;
        return 405 $gitboot_nothing;
    }
}
"""

_CADDY: Final = r"""# A mirror of boot/ by Caddy 2.6 or newer, which answers as gitboot's endpoint does.
#
# Copy this file, or import it in a Caddyfile, and set these variables of Caddy's environment:
#   GITBOOT_ADDRESS  where to answer; default: port 80, whatever the name that is asked for, without TLS. Machines ask
#                    by address, too, and Caddy has an empty 200 for names that it is not told
#   GITBOOT_ROOT     the copy of boot/, made with its times kept (rsync --times): each version of an entry has its own,
#                    and `gitboot read-access-logs` knows the version by it
#   GITBOOT_LOG      what `gitboot read-access-logs` reads
#   GITBOOT_MONITORS addresses and networks that may read the signed list, which names every machine; default: this host

{$GITBOOT_ADDRESS::80} {
	root * {$GITBOOT_ROOT:/srv/gitboot/boot}

	log {
		output file {$GITBOOT_LOG:/var/log/caddy/gitboot.log} {
			roll_uncompressed
		}
		format json {
			time_format rfc3339_nano
		}
	}

	route {
		@not_allowed not method GET HEAD
		handle @not_allowed {
			header Allow "GET, HEAD"
			header Cache-Control no-store
			respond 405
		}

		# Paths whose query says for whom they are, or that have another name.
@caddy_aliases@
		# Folders are not listed. Hidden is what is still being copied here.
		@hidden path */ */.*
		error @hidden 404

		# The signed list names every machine.
		@list {
			path /signed/*
			not remote_ip {$GITBOOT_MONITORS:127.0.0.1 ::1}
		}
		handle @list {
			header Cache-Control no-store
			respond 403
		}

		header Cache-Control no-cache
		@immutable path /o/*
		header @immutable Cache-Control "public, max-age=31536000, immutable"
		@installation path */data/* */failed/* */provisioned/*
		header @installation Cache-Control no-store

		# What a machine boots is sent anew each time, and so stands in the log each time.
		@boot path_regexp ^/(?:@entries@)$
		request_header @boot -If-None-Match
		request_header @boot -If-Modified-Since
		header @boot Cache-Control no-store
		header @boot -Etag

		# An entry is sent whole or not at all.
		@entry not path /o/* /assets/*
		request_header @entry -Range

		# UEFI HTTP boot goes by the type of what it fetches. Of these, the last that fits counts.
		header Content-Type "text/plain; charset=utf-8"
		@artifact path /o/* /assets/* */data/*
		header @artifact Content-Type application/octet-stream
		@ignition path /@ignition@/*
		header @ignition Content-Type @ignition_type@
		@cloud_config path @bundled_paths@
		header @cloud_config Content-Type "text/cloud-config; charset=utf-8"
@type_headers@
		file_server {
			disable_canonical_uris
		}
	}

	# A file that is absent is one and the same 404 without a body: GRUB would run the body as configuration. A copy
	# that is being filled, or an empty mount, has no first script: there, absence does not mean that a machine is
	# unknown. Neither does a file that cannot be read.
	handle_errors {
		header Cache-Control no-store
		header -Content-Type
		@absent {
			expression {http.error.status_code} == 404
@caddy_complete@		}
		respond @absent 404
		respond 503
	}
}
"""

# Sourced by the scripts in this directory: names, messages, and the compose command. POSIX sh.
#
# COMPOSE_PROJECT_NAME is part of the name of every container, volume and network of a cluster.

docker_dir=$(cd -P "$(dirname "$0")" && pwd)
COMPOSE_PROJECT_NAME=${COMPOSE_PROJECT_NAME:-hadar}
export COMPOSE_PROJECT_NAME

# shellcheck disable=SC2034 # used where this is read
NO_ENGINE=3 # exit status: no container engine can run here, and the last line says why

say() { printf '%s: %s\n' "docker/${0##*/}" "$*" >&2; }

fail() { # fail STATUS LINE
	status=$1
	shift
	say "$*"
	exit "$status"
}

compose() { # version 2 is a plugin of docker, version 1 a program of its own
	if docker compose version >/dev/null 2>&1; then
		docker compose --file "$docker_dir/compose.yaml" "$@"
	else
		docker-compose --file "$docker_dir/compose.yaml" "$@"
	fi
}

# Sourced by build.sh: which key signs, and how mkosi and openssl are told so.
# Without SIGN_KEY a pair of test keys is made in $OUT/keys and used from then on.
# shellcheck shell=bash disable=SC2034,SC2154 # its variables come from build.sh, and go there

make_key() { # NAME: a key and its certificate. RSA 2048: what all firmware takes.
	local dir=$OUT/keys
	[ ! -s "$dir/$1.crt" ] || return 0
	mkdir -p "$dir"
	(umask 077 && openssl req -x509 -newkey rsa:2048 -sha256 -nodes -days 7300 -batch -subj "/CN=edge test key, $1/" \
		-keyout "$dir/$1.key.new" -out "$dir/$1.crt.new" 2>/dev/null)
	chmod 0644 "$dir/$1.crt.new"
	mv "$dir/$1.key.new" "$dir/$1.key"
	mv "$dir/$1.crt.new" "$dir/$1.crt"
}

if [ -z "${SIGN_KEY:-}" ]; then
	[ -z "${SIGN_CERT:-}${NEXT_CERT:-}" ] || fail "SIGN_CERT and NEXT_CERT are of use with SIGN_KEY only"
	make_key current
	make_key next
	SIGN_KEY=$OUT/keys/current.key SIGN_CERT=$OUT/keys/current.crt NEXT_CERT=$OUT/keys/next.crt
	echo "image: signed with the test key in $OUT/keys: not for machines that matter" >&2
fi
[ -s "${SIGN_CERT:-}" ] || fail "SIGN_CERT must be the certificate (PEM) of SIGN_KEY"
[ -s "${NEXT_CERT:-}" ] || fail "NEXT_CERT must be the certificate (PEM) of the key that will follow: it is enrolled from day one"

mkdir -p "$work/keys"
install -m 0644 "$SIGN_CERT" "$work/keys/current.crt"
install -m 0644 "$NEXT_CERT" "$work/keys/next.crt"
sign_binds=()
sign_env=()
sign_mkosi=(--secure-boot-certificate=/build/keys/current.crt)
case $SIGN_KEY in
pkcs11:*)
	sign_key=$SIGN_KEY
	sign_mkosi+=(--secure-boot-key="$SIGN_KEY" --secure-boot-key-source=provider:pkcs11)
	# TODO
	;;
*)
	[ -s "$SIGN_KEY" ] || fail "SIGN_KEY: $SIGN_KEY is no file and no pkcs11: URI"
	sign_key=/build/keys/current.key
	install -m 0600 "$SIGN_KEY" "$work/keys/current.key"
	sign_mkosi+=(--secure-boot-key=/build/keys/current.key)
	;;
esac

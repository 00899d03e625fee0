# Sourced by build.sh: which key signs, and how openssl and mkosi are told so.
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
sign_binds=()
sign_env=()
for bind in ${SIGN_BIND:-}; do
	# mkosi shows /run, and nothing else of the root, to what signs.
	case $bind in *:/run/*) sign_binds+=(-b "$bind") ;; *) fail "SIGN_BIND: $bind: want FROM:/run/TO" ;; esac
done
for variable in ${PKCS11_MODULE:+"PKCS11_PROVIDER_MODULE=$PKCS11_MODULE"} ${SIGN_ENV:-}; do sign_env+=("$variable"); done

sign_mkosi=(--secure-boot-certificate=/build/keys/current.crt)
for variable in "${sign_env[@]}"; do sign_mkosi+=(--environment="$variable"); done
case $SIGN_KEY in
pkcs11:*)
	[ -n "${PKCS11_MODULE:-}" ] || fail "PKCS11_MODULE must be the library of the token of SIGN_KEY, in the tools root"
	sign_key=$SIGN_KEY
	# A % is special to mkosi, and it wants to be told twice where keys are.
	sign_mkosi+=(--secure-boot-key="${SIGN_KEY//%/%%}" --secure-boot-key-source=provider:pkcs11
		--sign-expected-pcr-key-source=provider:pkcs11)
	;;
*)
	[ -s "$SIGN_KEY" ] || fail "SIGN_KEY: $SIGN_KEY is no file and no pkcs11: URI"
	sign_key=/build/keys/current.key
	install -m 0600 "$SIGN_KEY" "$work/keys/current.key"
	sign_mkosi+=(--secure-boot-key="$sign_key")
	;;
esac

# take_certificate WHERE NAME: a PEM file, or what a token has.
take_certificate() {
	case ${1:-} in
	pkcs11:*)
		tools openssl storeutl -certs -provider pkcs11 -provider default "$1" |
			sed -n '/^-----BEGIN/,/^-----END/p' >"$work/keys/$2.crt"
		;;
	*) [ ! -s "${1:-}" ] || install -m 0644 "$1" "$work/keys/$2.crt" ;;
	esac
	[ -s "$work/keys/$2.crt" ]
}

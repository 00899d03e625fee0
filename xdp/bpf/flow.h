/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#ifndef FLOW_H
#define FLOW_H

#define ROTL(x, b) (((x) << (b)) | ((x) >> (64 - (b))))

struct sip {
	__u64 v0, v1, v2, v3;
};

static __always_inline void sip_round(struct sip *s)
{
	s->v0 += s->v1;
	s->v1 = ROTL(s->v1, 13) ^ s->v0;
	s->v0 = ROTL(s->v0, 32);
	s->v2 += s->v3;
	s->v3 = ROTL(s->v3, 16) ^ s->v2;
	s->v0 += s->v3;
	s->v3 = ROTL(s->v3, 21) ^ s->v0;
	s->v2 += s->v1;
	s->v1 = ROTL(s->v1, 17) ^ s->v2;
	s->v2 = ROTL(s->v2, 32);
}

static __always_inline void sip_word(struct sip *s, __u64 word)
{
	s->v3 ^= word;
	sip_round(s);
	s->v0 ^= word;
}

/*
 * SipHash-1-3 of the 40 bytes of the 5-tuple. Keyed, so that nobody outside
 * can aim flows at one backend. hash.go computes the same.
 */
static __always_inline __u64 flow_hash(const __u64 *seed, const struct flow_key *key)
{
	const __u64 *word = (const __u64 *)key;
	struct sip s = {
		.v0 = seed[0] ^ 0x736f6d6570736575ULL,
		.v1 = seed[1] ^ 0x646f72616e646f6dULL,
		.v2 = seed[0] ^ 0x6c7967656e657261ULL,
		.v3 = seed[1] ^ 0x7465646279746573ULL,
	};

	sip_word(&s, word[0]);
	sip_word(&s, word[1]);
	sip_word(&s, word[2]);
	sip_word(&s, word[3]);
	sip_word(&s, word[4]);
	sip_word(&s, 40ULL << 56); /* the length ends it */
	s.v2 ^= 0xff;
	sip_round(&s);
	sip_round(&s);
	sip_round(&s);
	return s.v0 ^ s.v1 ^ s.v2 ^ s.v3;
}

static __always_inline int is_alive(__u64 life)
{
	return (__u32)life != BACKEND_NONE;
}

/*
 * The backend that the flow table names, if it may still be followed: one of
 * this service, and the very one that was meant, not a later one of that id.
 */
static __always_inline struct backend *tracked(const struct flow_key *key, __u32 *id)
{
	struct flow *f = bpf_map_lookup_elem(&flow, key);
	struct backend *b;
	__u64 life;

	if (!f)
		return NULL;
	*id = f->backend;
	b = bpf_map_lookup_elem(&backend, id);
	if (!b)
		return NULL;
	life = *(volatile __u64 *)&b->life;
	if (!is_alive(life) || life >> 32 != f->gen || b->svc != key->svc)
		return NULL;
	return b;
}

static __always_inline void track(const struct flow_key *key, __u32 id, const struct backend *b)
{
	struct flow f = { .backend = id, .gen = b->life >> 32 };
	struct svc_count *n;

	/* A full table is no reason not to forward: the ring still knows. */
	if (bpf_map_update_elem(&flow, key, &f, BPF_ANY))
		return;
	n = bpf_map_lookup_elem(&svc_count, &key->svc);
	if (n)
		n->flows++;
}

#endif

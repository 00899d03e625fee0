/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#ifndef HASH_H
#define HASH_H

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

static __always_inline __u64 sip_end(struct sip *s)
{
	s->v2 ^= 0xff;
	sip_round(s);
	sip_round(s);
	sip_round(s);
	return s->v0 ^ s->v1 ^ s->v2 ^ s->v3;
}

static __always_inline __u64 pair(const __u8 *a)
{
	const __u32 *w = (const __u32 *)a;

	return w[0] | (__u64)w[1] << 32;
}

/*
 * SipHash-1-3 of the fields of a packet that count: 1 source, 2 and destination,
 * 3 and protocol, 5 and ports. Keyed, so that nobody outside can aim flows at
 * one backend or at one bucket. Without the word that tells the length: a message
 * is two words long or five, and its last one says which.
 */
static __always_inline __u64 hash_fields(const __u64 *seed, const struct flow_tuple *t, __u32 fields,
					 int v6)
{
	__u64 last = v6 ? 6ULL << 40 : 4ULL << 40;
	struct sip s = {
		.v0 = seed[0] ^ 0x736f6d6570736575ULL,
		.v1 = seed[1] ^ 0x646f72616e646f6dULL,
		.v2 = seed[0] ^ 0x6c7967656e657261ULL,
		.v3 = seed[1] ^ 0x7465646279746573ULL,
	};

	if (fields >= 5)
		last |= t->sport | (__u64)t->dport << 16;
	if (fields >= 3)
		last |= (__u64)t->proto << 32;
	if (v6) {
		sip_word(&s, pair(t->src));
		sip_word(&s, pair(t->src + 8));
		sip_word(&s, fields >= 2 ? pair(t->dst) : 0);
		sip_word(&s, fields >= 2 ? pair(t->dst + 8) : 0);
	} else {
		__u64 dst = fields >= 2 ? *(__u32 *)(t->dst + 12) : 0;

		sip_word(&s, *(__u32 *)(t->src + 12) | dst << 32);
	}
	sip_word(&s, last);
	return sip_end(&s);
}

#endif

/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#ifndef CAPTURE_H
#define CAPTURE_H

static __always_inline int is_sampled(const struct host *h, enum verdict v)
{
	__u32 one_in = h->sample;

	if (!one_in || !(h->sample_actions & 1 << VERDICT_ACTION(v)))
		return 0;
	return one_in == 1 || bpf_get_prandom_u32() % one_in == 0;
}

static __noinline void fill_sample(struct xdp_md *ctx, struct sample *s, __u32 v)
{
	__u32 length = frame_len(ctx), n = length;

	if (n > SNAP_LENGTH)
		n = SNAP_LENGTH;
	s->time = bpf_ktime_get_ns();
	s->ifindex = ctx->ingress_ifindex;
	s->length = length;
	s->verdict = v;
	s->captured = n;
	if (n == 0 || bpf_xdp_load_bytes(ctx, 0, s->data, n))
		s->captured = 0;
}

/* Hands the beginning of a packet as it leaves to who is capturing. */
__noinline int capture(struct xdp_md *ctx, __u32 v)
{
	struct sample *s = bpf_ringbuf_reserve(&samples, sizeof(*s), 0);

	if (!s)
		return 0; /* the reader is slow: it misses some */
	fill_sample(ctx, s, v);
	bpf_ringbuf_submit(s, 0);
	return 0;
}

#endif

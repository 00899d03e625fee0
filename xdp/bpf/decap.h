/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#ifndef DECAP_H
#define DECAP_H

/* The outside of a packet to one of our tunnel addresses. */
struct tunnel {
	__u8 src[16];
	__u32 rest; /* bytes behind the headers parsed so far */
	__u8 proto;
	__u8 bad;      /* lengths or version lie */
	__u8 fragment; /* cannot be taken apart */
};

static __always_inline int parse_outer4(struct cursor *c, struct tunnel *t)
{
	__u32 frame = c->end - c->pos, len;
	struct iphdr *ip = take(c, sizeof(*ip));

	if (!ip)
		return -1;
	len = bpf_ntohs(ip->tot_len);
	map_ip4(t->src, ip->saddr);
	t->proto = ip->protocol;
	t->fragment = !!(ip->frag_off & bpf_htons(IP4_FRAGMENT));
	/* Options: none of our packets has any. */
	t->bad = ip->version != 4 || ip->ihl != 5 || len < sizeof(*ip) || len > frame;
	t->rest = len - sizeof(*ip);
	return 0;
}

static __always_inline int parse_outer6(struct cursor *c, struct tunnel *t)
{
	__u32 frame = c->end - c->pos;
	struct ipv6hdr *ip = take(c, sizeof(*ip));

	if (!ip)
		return -1;
	t->rest = bpf_ntohs(ip->payload_len);
	copy_ip6(t->src, &ip->saddr);
	t->proto = ip->nexthdr;
	t->bad = ip->version != 6 || t->rest + sizeof(*ip) > frame || is_mapped(t->src);
	return 0;
}

/*
 * Says whether this is tunnel traffic, and if so whether it may come in. All
 * else to the address is the stack's: it may be BGP, or a probe.
 */
static __always_inline enum verdict parse_tunnel(struct cursor *c, int v6, struct tunnel *t)
{
	struct udphdr *udp = NULL;

	if (v6 ? parse_outer6(c, t) : parse_outer4(c, t))
		return PASS_TRUNCATED_IP;
	if (t->proto == IPPROTO_UDP) {
		if (t->bad || t->fragment || t->rest < sizeof(*udp))
			return PASS_NOT_VIP;
		udp = take(c, sizeof(*udp));
		if (!udp || udp->dest != bpf_htons(GUE_PORT))
			return PASS_NOT_VIP;
	} else if (t->proto != IPPROTO_IPIP && t->proto != IPPROTO_IPV6) {
		return PASS_NOT_VIP;
	}
	if (t->bad)
		return DROP_DECAP_MALFORMED;
	if (!bpf_map_lookup_elem(&trusted, t->src))
		return DROP_DECAP_UNTRUSTED;
	if (t->fragment)
		return DROP_FRAGMENT;
	if (udp) {
		__u32 len = bpf_ntohs(udp->len);

		if (len < sizeof(*udp) || len > t->rest)
			return DROP_DECAP_MALFORMED;
		t->rest = len - sizeof(*udp);
	}
	return VERDICT_NONE;
}

/* Reads the family of the packet inside: 4, 6, or -1 if it is neither. */
static __always_inline int inner_version(struct cursor c, const struct tunnel *t)
{
	__u8 *first = take(&c, 1);

	if (!first || t->rest < sizeof(struct iphdr))
		return -1;
	/* In GUE variant 1 these are the variant and the inner version at once. */
	if (*first >> 4 == 4)
		return t->proto == IPPROTO_IPV6 ? -1 : 4;
	if (*first >> 4 != 6 || t->rest < sizeof(struct ipv6hdr))
		return -1;
	return t->proto == IPPROTO_IPIP ? -1 : 6;
}

/* Takes len bytes of outer headers away and tells Ethernet what is left. */
static __always_inline enum verdict strip(struct xdp_md *ctx, const struct packet *outside, __u32 len,
					  int v6)
{
	struct cursor c = cursor(ctx);
	struct ethhdr *eth = take(&c, sizeof(*eth));
	__u8 macs[2 * ETH_ALEN];

	if (!eth)
		return DROP_DECAP_MALFORMED;
	__builtin_memcpy(macs, eth, sizeof(macs));
	if (bpf_xdp_adjust_head(ctx, len))
		return DROP_DECAP_MALFORMED;
	c = cursor(ctx);
	if (push_ethernet(&c, macs, &outside->tags, v6 ? bpf_htons(ETH_P_IPV6) : bpf_htons(ETH_P_IP)))
		return DROP_DECAP_MALFORMED;
	return PASS_DECAP;
}

/* Says whether what is inside is for a service of this box. */
static __always_inline enum verdict judge_inside(struct xdp_md *ctx, struct packet *p)
{
	enum verdict v = parse(ctx, p, 0);
	__u32 *kind;

	if (VERDICT_ACTION(v) == ACTION_DROP)
		return v;
	kind = bpf_map_lookup_elem(&addr, p->key.dst);
	if (v != VERDICT_NONE || p->kind == KIND_ECHO || !kind || (*kind & ADDR_KIND_MASK) != ADDR_VIP)
		return DROP_DECAP_NOT_VIP;
	if (p->kind == KIND_ERROR) {
		v = unquote(ctx, p);
		if (v != VERDICT_NONE)
			return VERDICT_ACTION(v) == ACTION_DROP ? v : DROP_DECAP_NOT_VIP;
	}
	v = find_service(p, *kind);
	return v == PASS_NO_SERVICE ? DROP_DECAP_NOT_VIP : VERDICT_NONE;
}

/*
 * A packet to one of our tunnel addresses. What comes out of a tunnel is for
 * this box: it never goes back out, so two boxes cannot play ping-pong.
 */
__noinline enum verdict decap(struct xdp_md *ctx, struct packet *outside)
{
	struct packet p = {};
	struct tunnel t = {};
	struct cursor c;
	enum verdict v;
	int version, v6;
	__u32 outer;

	if (!outside)
		return PASS_NOT_IP;
	v6 = outside->v6;
	c = cursor_at(ctx, outside->l3);
	v = parse_tunnel(&c, v6, &t);
	if (v != VERDICT_NONE)
		return v;
	outer = (v6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr)) +
		(t.proto == IPPROTO_UDP ? sizeof(struct udphdr) : 0);
	version = inner_version(c, &t);
	if (version < 0 || parse_dst(c, version == 6, p.key.dst) != VERDICT_NONE)
		return DROP_DECAP_MALFORMED;
	p.l3 = outside->l3 + outer;
	p.room = t.rest;
	p.v6 = version == 6;
	v = judge_inside(ctx, &p);
	return v != VERDICT_NONE ? v : strip(ctx, outside, outer, version == 6);
}

#endif

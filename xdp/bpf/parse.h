/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#ifndef PARSE_H
#define PARSE_H

#define MAX_EXT_HEADERS 6
#define IP4_FRAGMENT	0x3fff /* more fragments, or an offset */

/* Where the parser stands in the frame. */
struct cursor {
	__u8 *pos;
	__u8 *end;
};

/* A packet to one of our addresses, as far as it was parsed. */
struct packet {
	struct flow_key key;
	__u32 room; /* where the packet must fit in, from its IP header on, in bytes */
	__u32 len;  /* IP header and payload; may be less than room */
	__u32 rest; /* of len, what follows the headers parsed so far */
	__u8 v6;
	__u8 tos; /* type of service or traffic class */
	__u8 ttl;
	__u8 syn; /* TCP: opens a connection */
	__u8 rst;
};

static __always_inline struct cursor cursor(struct xdp_md *ctx)
{
	return (struct cursor){
		.pos = (__u8 *)(long)ctx->data,
		.end = (__u8 *)(long)ctx->data_end,
	};
}

/* Returns the next len bytes and moves behind them; NULL if there are fewer. */
static __always_inline void *take(struct cursor *c, __u32 len)
{
	__u8 *at = c->pos;

	if (at + len > c->end)
		return NULL;
	c->pos = at + len;
	return at;
}

static __always_inline void map_ip4(__u8 *to, __be32 from)
{
	__u32 *w = (__u32 *)to;

	w[0] = 0;
	w[1] = 0;
	w[2] = bpf_htonl(0xffff);
	w[3] = from;
}

static __always_inline void copy_ip6(__u8 *to, const void *from)
{
	const __u32 *f = from;
	__u32 *t = (__u32 *)to;

	t[0] = f[0];
	t[1] = f[1];
	t[2] = f[2];
	t[3] = f[3];
}

static __always_inline int is_mapped(const __u8 *a)
{
	const __u32 *w = (const __u32 *)a;

	return !w[0] && !w[1] && w[2] == bpf_htonl(0xffff);
}

/*
 * Sources that no host has. An answer to them would go nowhere, or to a crowd;
 * a mapped one would pass for an IPv4 address in our maps.
 */
static __always_inline int bad_ip4_source(__be32 a)
{
	__u8 first = bpf_ntohl(a) >> 24;

	return first == 0 || first == 127 || first >= 224;
}

static __always_inline int bad_ip6_source(const __u8 *a)
{
	const __u32 *w = (const __u32 *)a;

	if (a[0] == 0xff || is_mapped(a))
		return 1;
	return !w[0] && !w[1] && !w[2] && bpf_ntohl(w[3]) <= 1;
}

/* Reads whom a packet is for, before anything else is believed. */
static __always_inline enum verdict parse_dst(struct cursor c, int v6, __u8 *dst)
{
	if (v6) {
		struct ipv6hdr *ip = take(&c, sizeof(*ip));

		if (!ip)
			return PASS_TRUNCATED_IP;
		copy_ip6(dst, &ip->daddr);
		/* On the wire such an address is not an IPv4 one. */
		return is_mapped(dst) ? PASS_NOT_VIP : VERDICT_NONE;
	}
	struct iphdr *ip = take(&c, sizeof(*ip));

	if (!ip)
		return PASS_TRUNCATED_IP;
	map_ip4(dst, ip->daddr);
	return VERDICT_NONE;
}

static __always_inline enum verdict parse_ip4(struct cursor *c, struct packet *p)
{
	__u32 header;
	struct iphdr *ip = take(c, sizeof(*ip));

	if (!ip)
		return DROP_TRUNCATED;
	if (ip->version != 4)
		return DROP_BAD_VERSION;
	if (ip->ihl < 5)
		return DROP_BAD_HEADER;
	header = ip->ihl * 4;
	p->len = bpf_ntohs(ip->tot_len);
	if (p->len < header || p->len > p->room)
		return DROP_BAD_LENGTH;
	if (bad_ip4_source(ip->saddr))
		return DROP_BAD_SOURCE;
	if (ip->frag_off & bpf_htons(IP4_FRAGMENT))
		return DROP_FRAGMENT;
	p->rest = p->len - header;
	p->tos = ip->tos;
	p->ttl = ip->ttl;
	p->key.proto = ip->protocol;
	map_ip4(p->key.src, ip->saddr);
	map_ip4(p->key.dst, ip->daddr);
	/* Options are the backend's business. */
	return take(c, header - sizeof(*ip)) ? VERDICT_NONE : DROP_TRUNCATED;
}

/*
 * Steps over one extension header. Returns the protocol behind it, or -1 if
 * the header is cut off.
 */
static __always_inline int parse_ext(struct cursor *c, struct packet *p, __u8 proto)
{
	__u32 len, more;
	struct ipv6_opt_hdr *ext = take(c, 8); /* none is shorter */

	if (!ext)
		return -1;
	/* The length of AH counts words of 4 (RFC 4302), of the others 8 bytes. */
	len = proto == IPPROTO_AH ? (ext->hdrlen + 2) * 4 : (ext->hdrlen + 1) * 8;
	if (len > p->rest)
		return -1;
	p->rest -= len;
	more = len - 8;
	return take(c, more) ? ext->nexthdr : -1;
}

static __always_inline int is_ext(__u8 proto)
{
	return proto == IPPROTO_HOPOPTS || proto == IPPROTO_ROUTING || proto == IPPROTO_DSTOPTS ||
	       proto == IPPROTO_AH;
}

static __always_inline enum verdict parse_ip6(struct cursor *c, struct packet *p)
{
	struct ipv6hdr *ip = take(c, sizeof(*ip));
	int proto;

	if (!ip)
		return DROP_TRUNCATED;
	if (ip->version != 6)
		return DROP_BAD_VERSION;
	p->rest = bpf_ntohs(ip->payload_len);
	p->len = p->rest + sizeof(*ip);
	if (p->len > p->room)
		return DROP_BAD_LENGTH;
	copy_ip6(p->key.src, &ip->saddr);
	copy_ip6(p->key.dst, &ip->daddr);
	if (bad_ip6_source(p->key.src))
		return DROP_BAD_SOURCE;
	p->v6 = 1;
	p->tos = ip->priority << 4 | ip->flow_lbl[0] >> 4;
	p->ttl = ip->hop_limit;
	proto = ip->nexthdr;
	for (int i = 0; i < MAX_EXT_HEADERS && is_ext(proto); i++) {
		proto = parse_ext(c, p, proto);
		if (proto < 0)
			return DROP_TRUNCATED;
	}
	if (is_ext(proto))
		return DROP_EXT_HEADERS;
	if (proto == IPPROTO_FRAGMENT)
		return DROP_FRAGMENT;
	p->key.proto = proto;
	return VERDICT_NONE;
}

static __always_inline enum verdict parse_tcp(struct cursor *c, struct packet *p)
{
	struct tcphdr *tcp = take(c, sizeof(*tcp));

	if (!tcp || p->rest < sizeof(*tcp))
		return DROP_TRUNCATED;
	if (tcp->doff < 5 || tcp->doff * 4 > p->rest)
		return DROP_BAD_TCP;
	p->key.sport = tcp->source;
	p->key.dport = tcp->dest;
	p->syn = tcp->syn && !tcp->ack;
	p->rst = tcp->rst;
	return VERDICT_NONE;
}

static __always_inline enum verdict parse_udp(struct cursor *c, struct packet *p)
{
	struct udphdr *udp = take(c, sizeof(*udp));

	if (!udp || p->rest < sizeof(*udp))
		return DROP_TRUNCATED;
	if (bpf_ntohs(udp->len) < sizeof(*udp) || bpf_ntohs(udp->len) > p->rest)
		return DROP_BAD_UDP;
	p->key.sport = udp->source;
	p->key.dport = udp->dest;
	return VERDICT_NONE;
}

/* Parses a packet to a VIP down to its ports. */
static __always_inline enum verdict parse(struct cursor *c, int v6, struct packet *p)
{
	enum verdict v = v6 ? parse_ip6(c, p) : parse_ip4(c, p);

	if (v != VERDICT_NONE)
		return v;
	switch (p->key.proto) {
	case IPPROTO_TCP:
		return parse_tcp(c, p);
	case IPPROTO_UDP:
		return parse_udp(c, p);
	}
	if (p->key.proto == (v6 ? IPPROTO_ICMPV6 : IPPROTO_ICMP))
		return PASS_ICMP;
	return PASS_NO_SERVICE;
}

#endif

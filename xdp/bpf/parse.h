/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#ifndef PARSE_H
#define PARSE_H

#define MAX_EXT_HEADERS 6
#define IP4_FRAGMENT	0x3fff /* more fragments, or an offset */
#define IP4_OFFSET	0x1fff
#define IP6_FRAGMENT	0xfff9
#define IP6_OFFSET	0xfff8
#define MAX_L2		22 /* Ethernet and two tags */
#define MAX_OFFSET	0x3fff /* more than all headers together can take */

/* Where the parser stands in the frame. */
struct cursor {
	__u8 *pos;
	__u8 *end;
};

enum packet_kind {
	KIND_FLOW = 0, /* of a flow */
	KIND_ECHO,     /* an ICMP echo request */
	KIND_ERROR,    /* an ICMP error: of the flow that it quotes */
};

enum fragment_kind {
	FRAGMENT_NONE = 0,
	FRAGMENT_FIRST, /* and more to come */
	FRAGMENT_LATER,
};

/* A packet to one of our addresses, as far as it was parsed. */
struct packet {
	struct flow_tuple key;
	__u64 hash;	/* of the flow; spreads over receive queues and paths */
	__u32 svc;	/* service id */
	__u32 room;	/* where the packet must fit in, from its IP header on, in bytes */
	__u32 len;	/* IP header and payload; may be less than room */
	__u32 rest;	/* of len, what follows the headers parsed so far */
	__u32 l3;	/* offset of the IP header in the frame */
	__u32 l4;	/* of what follows it and its extension headers */
	__u32 udp;	/* length of the UDP header and payload */
	struct vlan_tags tags;
	__u8 v6;
	__u8 tos; /* type of service or traffic class */
	__u8 ttl;
	__u8 syn; /* TCP: opens a connection */
	__u8 rst;
	__u8 fragment; /* enum fragment_kind */
	__u8 kind;     /* enum packet_kind */
	__u8 inner;    /* came in a tunnel */
};

static __always_inline struct cursor cursor(struct xdp_md *ctx)
{
	return (struct cursor){
		.pos = (__u8 *)(long)ctx->data,
		.end = (__u8 *)(long)ctx->data_end,
	};
}

/* In 64 bits: the verifier allows no other arithmetic on what these really are. */
static __always_inline __u32 frame_len(struct xdp_md *ctx)
{
	long len = (long)ctx->data_end - (long)ctx->data;

	asm volatile("" : "+r"(len));
	return len;
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

/* Returns a cursor at an offset of the frame. */
static __always_inline struct cursor cursor_at(struct xdp_md *ctx, __u32 offset)
{
	struct cursor c = cursor(ctx);

	c.pos += offset & MAX_OFFSET;
	return c;
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

static __always_inline int same_addr(const __u8 *a, const __u8 *b)
{
	const __u32 *x = (const __u32 *)a, *y = (const __u32 *)b;

	return x[0] == y[0] && x[1] == y[1] && x[2] == y[2] && x[3] == y[3];
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

static __always_inline int is_vlan(__be16 proto)
{
	return proto == bpf_htons(ETH_P_8021Q) || proto == bpf_htons(ETH_P_8021AD);
}

/* Steps over up to two tags. Returns the ethertype behind them, or -1. */
static __always_inline int parse_vlan(struct cursor *c, __be16 proto, struct packet *p)
{
#pragma unroll
	for (int i = 0; i < 2; i++) {
		__be16 *tag;

		if (!is_vlan(proto))
			return proto;
		tag = take(c, 4);
		if (!tag)
			return -1;
		p->tags.proto[i] = proto;
		p->tags.tci[i] = tag[0];
		p->l3 += 4;
		proto = tag[1];
	}
	return is_vlan(proto) ? -1 : proto;
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
	if (bad_ip4_source(ip->saddr) || ip->saddr == ip->daddr)
		return DROP_BAD_SOURCE;
	if (ip->frag_off & bpf_htons(IP4_FRAGMENT))
		p->fragment = ip->frag_off & bpf_htons(IP4_OFFSET) ? FRAGMENT_LATER : FRAGMENT_FIRST;
	p->rest = p->len - header;
	p->l4 = p->l3 + header;
	p->tos = ip->tos;
	p->ttl = ip->ttl;
	p->key.proto = ip->protocol;
	map_ip4(p->key.src, ip->saddr);
	map_ip4(p->key.dst, ip->daddr);
	/* Options are the backend's business. */
	return take(c, header - sizeof(*ip)) ? VERDICT_NONE : DROP_TRUNCATED;
}

static __always_inline int is_ext(__u8 proto)
{
	return proto == IPPROTO_HOPOPTS || proto == IPPROTO_ROUTING || proto == IPPROTO_DSTOPTS ||
	       proto == IPPROTO_AH || proto == IPPROTO_FRAGMENT;
}

/* How long an extension header is: of all kinds but one its second byte says it. */
static __always_inline __u32 ext_len(__u8 proto, __u8 hdrlen)
{
	if (proto == IPPROTO_FRAGMENT)
		return 8;
	/* The length of AH counts words of 4 (RFC 4302), of the others 8 bytes. */
	return proto == IPPROTO_AH ? (hdrlen + 2) * 4 : (hdrlen + 1) * 8;
}

/* What a fragment header says of its packet. */
static __always_inline __u8 fragment_of(__be16 offset)
{
	if (offset & bpf_htons(IP6_OFFSET))
		return FRAGMENT_LATER;
	return offset & bpf_htons(IP6_FRAGMENT) ? FRAGMENT_FIRST : FRAGMENT_NONE;
}

/*
 * Steps over one extension header. Returns the protocol behind it, or -1 if
 * the header is cut off.
 */
static __always_inline int parse_ext(struct cursor *c, struct packet *p, __u8 proto)
{
	__u32 len, more;
	__u8 *ext = take(c, 8); /* none is shorter */

	if (!ext)
		return -1;
	len = ext_len(proto, ext[1]);
	if (len > p->rest)
		return -1;
	if (proto == IPPROTO_FRAGMENT)
		p->fragment = fragment_of(*(__be16 *)(ext + 2));
	p->rest -= len;
	p->l4 += len;
	more = len - 8;
	return take(c, more) ? ext[0] : -1;
}

static __always_inline enum verdict parse_exts(struct cursor *c, struct packet *p, __u8 proto)
{
	int fragments = 0;
	int next = proto;

	for (int i = 0; i < MAX_EXT_HEADERS && is_ext(next); i++) {
		int is_fragment = next == IPPROTO_FRAGMENT;

		next = parse_ext(c, p, next);
		if (next < 0)
			return DROP_TRUNCATED;
		if (is_fragment && fragments++)
			return DROP_BAD_HEADER;
		/* What the header of a fragment names is all that a later one says. */
		if (p->fragment)
			break;
	}
	if (is_ext(next))
		return DROP_EXT_HEADERS;
	p->key.proto = next;
	return VERDICT_NONE;
}

static __always_inline enum verdict parse_ip6(struct cursor *c, struct packet *p)
{
	struct ipv6hdr *ip = take(c, sizeof(*ip));

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
	if (bad_ip6_source(p->key.src) || same_addr(p->key.src, p->key.dst))
		return DROP_BAD_SOURCE;
	p->l4 = p->l3 + sizeof(*ip);
	p->tos = ip->priority << 4 | ip->flow_lbl[0] >> 4;
	p->ttl = ip->hop_limit;
	return parse_exts(c, p, ip->nexthdr);
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
	p->udp = bpf_ntohs(udp->len);
	if (p->udp < sizeof(*udp) || p->udp > p->rest)
		return DROP_BAD_UDP;
	p->key.sport = udp->source;
	p->key.dport = udp->dest;
	return VERDICT_NONE;
}

/* Types of ICMP errors that tell a sender of its packets (RFC 792, RFC 4443). */
static __always_inline int is_icmp_error(int v6, __u8 type)
{
	return v6 ? type >= 1 && type <= 4 : type == 3 || type == 11 || type == 12;
}

static __always_inline enum verdict parse_icmp(struct cursor *c, int v6, struct packet *p)
{
	__u8 *type = take(c, 8);

	if (!type || p->rest < 8)
		return DROP_TRUNCATED;
	if (*type == (v6 ? 128 : 8))
		p->kind = KIND_ECHO;
	else if (is_icmp_error(v6, *type))
		p->kind = KIND_ERROR;
	else
		return PASS_ICMP;
	return VERDICT_NONE;
}

/*
 * Parses a packet to a VIP down to its ports: p->l3 and p->room say where it is.
 * A fragment has none, also the first one: all go the same way.
 */
__noinline enum verdict parse(struct xdp_md *ctx, struct packet *p, __u32 blocked)
{
	struct cursor c;
	enum verdict v;
	int v6;

	if (!p)
		return DROP_TRUNCATED;
	c = cursor_at(ctx, p->l3);
	v6 = p->v6;
	v = v6 ? parse_ip6(&c, p) : parse_ip4(&c, p);
	if (v != VERDICT_NONE)
		return v;
	if (blocked && is_blocked(p->key.src, v6))
		return DROP_BLOCKED;
	if (p->fragment)
		return p->key.proto == (v6 ? IPPROTO_ICMPV6 : IPPROTO_ICMP) ? PASS_ICMP : VERDICT_NONE;
	switch (p->key.proto) {
	case IPPROTO_TCP:
		return parse_tcp(&c, p);
	case IPPROTO_UDP:
		return parse_udp(&c, p);
	}
	if (p->key.proto == (v6 ? IPPROTO_ICMPV6 : IPPROTO_ICMP))
		return parse_icmp(&c, v6, p);
	return VERDICT_NONE;
}

#endif

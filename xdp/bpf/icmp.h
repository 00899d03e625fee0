/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#ifndef ICMP_H
#define ICMP_H

#define ICMP_LEN      8
#define QUOTE4	      548  /* of a packet in an ICMP error (RFC 1812 section 4.3.2.3): 576 in all */
#define QUOTE6	      1232 /* RFC 4443 section 2.4: 1280 in all */
#define MIN_MTU6      1280
#define ANSWER_TTL    64
#define MAX_CSUM      512 /* bytes that one call of bpf_csum_diff takes */

static __always_inline __u16 fold(__u32 sum)
{
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return ~sum;
}

/* Reads n bytes at an offset of the packet, not of what the frame has behind it. */
static __always_inline int read_packet(struct xdp_md *ctx, const struct packet *p, __u32 at, void *to,
				       __u32 n)
{
	if (at + n > p->l3 + p->len)
		return -1;
	return bpf_xdp_load_bytes(ctx, at, to, n);
}

/* Where the quoted packet's transport header is, and of what protocol. */
struct quote {
	__u8 src[16];
	__u8 dst[16];
	__u32 at;
	__u8 proto;
	__u8 fragment;
};

/* Says whether the quote ends in the headers that were read: -1, or 0. */
static __always_inline int is_cut(const struct packet *p, const struct quote *q)
{
	return q->at > p->l3 + p->len ? -1 : 0;
}

static __always_inline int quoted4(struct xdp_md *ctx, const struct packet *p, struct quote *q)
{
	struct iphdr ip;

	if (read_packet(ctx, p, q->at, &ip, sizeof(ip)) || ip.version != 4 || ip.ihl < 5)
		return -1;
	map_ip4(q->src, ip.saddr);
	map_ip4(q->dst, ip.daddr);
	q->proto = ip.protocol;
	q->fragment = ip.frag_off & bpf_htons(IP4_FRAGMENT) ? FRAGMENT_FIRST : FRAGMENT_NONE;
	q->at += ip.ihl * 4;
	return is_cut(p, q);
}

static __always_inline int quoted6(struct xdp_md *ctx, const struct packet *p, struct quote *q)
{
	struct ipv6hdr ip;
	__u8 ext[8];
	int fragments = 0;

	if (read_packet(ctx, p, q->at, &ip, sizeof(ip)) || ip.version != 6)
		return -1;
	copy_ip6(q->src, &ip.saddr);
	copy_ip6(q->dst, &ip.daddr);
	q->proto = ip.nexthdr;
	q->at += sizeof(ip);
	for (int i = 0; i < MAX_EXT_HEADERS && is_ext(q->proto); i++) {
		if (read_packet(ctx, p, q->at, ext, sizeof(ext)))
			return -1;
		q->at += ext_len(q->proto, ext[1]);
		if (q->proto == IPPROTO_FRAGMENT) {
			if (fragments++)
				return -1;
			q->fragment = fragment_of(*(__be16 *)(ext + 2));
		}
		q->proto = ext[0];
		if (q->fragment)
			break;
	}
	return is_ext(q->proto) ? -1 : is_cut(p, q);
}

/*
 * Turns an ICMP error into a packet of the flow that it quotes, as the sender of
 * that flow would send it: from the quoted destination to the VIP. Its own
 * lengths are not believed, only read as far as they go: a router may quote no
 * more than the ports.
 */
__noinline enum verdict unquote(struct xdp_md *ctx, struct packet *p)
{
	struct quote q = {};
	__be16 port[2];

	if (!p)
		return DROP_ICMP_QUOTE;
	q.at = p->l4 + ICMP_LEN;
	if (p->v6 ? quoted6(ctx, p, &q) : quoted4(ctx, p, &q))
		return DROP_ICMP_QUOTE;
	if (!same_addr(q.src, p->key.dst))
		return DROP_ICMP_QUOTE;
	if (q.proto == (p->v6 ? IPPROTO_ICMPV6 : IPPROTO_ICMP))
		return PASS_ICMP;
	copy_ip6(p->key.src, q.dst);
	p->key.proto = q.proto;
	p->fragment = q.fragment;
	if (q.fragment || (q.proto != IPPROTO_TCP && q.proto != IPPROTO_UDP))
		return VERDICT_NONE;
	if (read_packet(ctx, p, q.at, port, sizeof(port)))
		return DROP_ICMP_QUOTE;
	p->key.sport = port[1];
	p->key.dport = port[0];
	return VERDICT_NONE;
}

static __always_inline int swap_macs(struct xdp_md *ctx)
{
	struct cursor c = cursor(ctx);
	struct ethhdr *eth = take(&c, sizeof(*eth)), old;

	if (!eth)
		return -1;
	old = *eth;
	__builtin_memcpy(eth->h_dest, old.h_source, ETH_ALEN);
	__builtin_memcpy(eth->h_source, old.h_dest, ETH_ALEN);
	return 0;
}

static __always_inline int echo4(struct cursor *c)
{
	struct iphdr *ip = take(c, sizeof(*ip));
	__be32 addr;

	if (!ip)
		return -1;
	addr = ip->saddr;
	ip->saddr = ip->daddr;
	ip->daddr = addr;
	ip->ttl = ANSWER_TTL;
	ip->check = 0;
	ip->check = ip4_sum(ip);
	return 0;
}

static __always_inline int echo6(struct cursor *c)
{
	struct ipv6hdr *ip = take(c, sizeof(*ip));
	__u8 addr[16];

	if (!ip)
		return -1;
	copy_ip6(addr, &ip->saddr);
	copy_ip6((__u8 *)&ip->saddr, &ip->daddr);
	copy_ip6((__u8 *)&ip->daddr, addr);
	ip->hop_limit = ANSWER_TTL;
	return 0;
}

/* Answers an echo request in place. */
__noinline enum verdict echo(struct xdp_md *ctx, struct packet *p)
{
	struct cursor c;
	__be16 *icmp;
	__u32 sum;

	if (!p)
		return PASS_ICMP;
	/* Options may say where to go: that is for the stack to weigh. */
	if (p->l4 != p->l3 + (p->v6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr)))
		return PASS_ICMP;
	if (trim(ctx, p) || swap_macs(ctx))
		return DROP_TRUNCATED;
	c = cursor_at(ctx, p->l3);
	if (p->v6 ? echo6(&c) : echo4(&c))
		return DROP_TRUNCATED;
	icmp = take(&c, ICMP_LEN);
	if (!icmp)
		return DROP_TRUNCATED;
	/* RFC 1624 section 3, equation 3. */
	sum = (__u16)~icmp[1] + (__u16)~icmp[0];
	*(__u8 *)icmp = p->v6 ? 129 : 0;
	icmp[1] = fold(sum + icmp[0]);
	return TX_ECHO;
}

/* Sums n bytes, which is a constant. */
static __always_inline __u32 sum_bytes(struct cursor c, __u32 n, __u32 sum)
{
#pragma unroll
	for (int i = 0; i < 3; i++) {
		__u32 part = n < MAX_CSUM ? n : MAX_CSUM;
		__be32 *at;

		if (!part)
			break;
		at = take(&c, part);
		if (!at)
			return 0;
		sum = bpf_csum_diff(NULL, 0, at, part, sum);
		n -= part;
	}
	return sum;
}

static __always_inline int write_too_big4(struct cursor *c, const struct packet *p)
{
	struct iphdr *ip = take(c, sizeof(*ip));
	struct cursor body = *c;
	__be16 *icmp = take(c, ICMP_LEN);

	if (!ip || !icmp)
		return -1;
	*ip = (struct iphdr){
		.version = 4,
		.ihl = 5,
		.tot_len = bpf_htons(sizeof(*ip) + ICMP_LEN + QUOTE4),
		.ttl = ANSWER_TTL,
		.protocol = IPPROTO_ICMP,
		.saddr = *(__be32 *)(p->key.dst + 12),
		.daddr = *(__be32 *)(p->key.src + 12),
	};
	ip->check = ip4_sum(ip);
	icmp[0] = bpf_htons(3 << 8 | 4);
	icmp[1] = 0;
	icmp[2] = 0;
	icmp[3] = bpf_htons(p->room);
	icmp[1] = fold(sum_bytes(body, ICMP_LEN + QUOTE4, 0));
	return 0;
}

static __always_inline int write_too_big6(struct cursor *c, const struct packet *p)
{
	__u32 mtu = p->room < MIN_MTU6 ? MIN_MTU6 : p->room, sum;
	struct ipv6hdr *ip = take(c, sizeof(*ip));
	struct cursor body = *c;
	__be16 *icmp = take(c, ICMP_LEN);
	__be32 pseudo[10];

	if (!ip || !icmp)
		return -1;
	*(__be32 *)ip = bpf_htonl(6u << 28);
	ip->payload_len = bpf_htons(ICMP_LEN + QUOTE6);
	ip->nexthdr = IPPROTO_ICMPV6;
	ip->hop_limit = ANSWER_TTL;
	copy_ip6((__u8 *)&ip->saddr, p->key.dst);
	copy_ip6((__u8 *)&ip->daddr, p->key.src);
	icmp[0] = bpf_htons(2 << 8);
	icmp[1] = 0;
	*(__be32 *)(icmp + 2) = bpf_htonl(mtu);
	copy_ip6((__u8 *)pseudo, p->key.dst);
	copy_ip6((__u8 *)(pseudo + 4), p->key.src);
	pseudo[8] = bpf_htonl(ICMP_LEN + QUOTE6);
	pseudo[9] = bpf_htonl(IPPROTO_ICMPV6);
	sum = bpf_csum_diff(NULL, 0, pseudo, sizeof(pseudo), 0);
	icmp[1] = fold(sum_bytes(body, ICMP_LEN + QUOTE6, sum));
	return 0;
}

/* Makes the frame one that quotes the first bytes of what it holds. */
static __always_inline int make_room(struct xdp_md *ctx, const struct packet *p, __u32 head, __u32 quote)
{
	struct cursor c = cursor(ctx);
	int extra = frame_len(ctx) - p->l3 - quote;
	struct ethhdr *eth = take(&c, sizeof(*eth));
	__u8 macs[2 * ETH_ALEN];

	if (!eth || extra < 0)
		return -1;
	__builtin_memcpy(macs, eth->h_source, ETH_ALEN);
	__builtin_memcpy(macs + ETH_ALEN, eth->h_dest, ETH_ALEN);
	if (extra > 0 && bpf_xdp_adjust_tail(ctx, -extra))
		return -1;
	if (bpf_xdp_adjust_head(ctx, -(int)head))
		return -1;
	c = cursor(ctx);
	return push_ethernet(&c, macs, &p->tags, p->v6 ? bpf_htons(ETH_P_IPV6) : bpf_htons(ETH_P_IP));
}

/*
 * Tells the sender of a packet that does not fit how much would: p->room. Also if
 * it allows fragments: senders that do still learn from it.
 */
__noinline enum verdict tell_too_big(struct xdp_md *ctx, struct packet *p)
{
	__u32 zero = 0, head, quote;
	struct host *h = bpf_map_lookup_elem(&host, &zero);
	__u64 *due = bpf_map_lookup_elem(&too_big_due, &zero);
	struct cursor c;

	if (!p || !h || !due)
		return DROP_TOO_BIG;
	head = ICMP_LEN + (p->v6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr));
	quote = p->v6 ? QUOTE6 : QUOTE4;
	/*
	 * No error is sent about an error, or about a later fragment (RFC 1122
	 * section 3.2.2), nor is any longer than what it is about.
	 */
	if (p->kind != KIND_FLOW || p->fragment == FRAGMENT_LATER || p->len < head + quote)
		return DROP_TOO_BIG;
	if (!h->too_big.interval || is_over(due, bpf_ktime_get_ns(), &h->too_big))
		return DROP_TOO_BIG_LIMITED;
	if (make_room(ctx, p, head, quote))
		return DROP_NO_HEADROOM;
	c = cursor_at(ctx, p->l3);
	if (p->v6 ? write_too_big6(&c, p) : write_too_big4(&c, p))
		return DROP_NO_HEADROOM;
	return TX_TOO_BIG;
}

#endif

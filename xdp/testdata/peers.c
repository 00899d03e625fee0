// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * What the data plane is measured against, as programs that do one thing each.
 * The benchmarks alone compile and load it. Its frames are IPv4 without options
 * or IPv6 without extension headers.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#ifndef barrier
#define barrier() asm volatile("" ::: "memory")
#endif

#include "../bpf/maps.h"
#include "../bpf/hash.h"
#include "../bpf/table.h"

#define AF_INET	 2
#define AF_INET6 10

const volatile __be32 src4, dst4;
const volatile __u32 src6[4], dst6[4];

/* Not for loading: the compiler describes no type that no function takes. */
__noinline int types(const struct svc_table *t, const struct prefix *p)
{
	return t && p ? t->n_backends + p->bits : 0;
}

/* The least that a program can do. */
SEC("xdp")
int bare(struct xdp_md *ctx)
{
	return XDP_PASS;
}

/*
 * The least that a forwarder can do: ask for the route, put a header around the
 * packet. It knows one backend, and neither services nor flows.
 */
SEC("xdp")
int lower_bound_v4(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct iphdr *ip = data + sizeof(struct ethhdr);
	struct bpf_fib_lookup fib = {
		.family = AF_INET, .l4_protocol = IPPROTO_IPIP, .ifindex = ctx->ingress_ifindex,
		.ipv4_src = src4, .ipv4_dst = dst4,
	};
	struct ethhdr *eth;
	__u16 len;
	__u32 sum = 0;

	if ((void *)(ip + 1) > end || ip->version != 4)
		return XDP_PASS;
	len = bpf_ntohs(ip->tot_len) + sizeof(*ip);
	fib.tot_len = len;
	if (bpf_fib_lookup(ctx, &fib, sizeof(fib), 0))
		return XDP_DROP;
	if (bpf_xdp_adjust_head(ctx, -(int)sizeof(*ip)))
		return XDP_DROP;
	eth = (void *)(long)ctx->data;
	end = (void *)(long)ctx->data_end;
	ip = (void *)(eth + 1);
	if ((void *)(ip + 1) > end)
		return XDP_DROP;
	__builtin_memcpy(eth->h_dest, fib.dmac, ETH_ALEN);
	__builtin_memcpy(eth->h_source, fib.smac, ETH_ALEN);
	eth->h_proto = bpf_htons(ETH_P_IP);
	*ip = (struct iphdr){ .version = 4, .ihl = 5, .tot_len = bpf_htons(len), .ttl = 64,
			      .protocol = IPPROTO_IPIP, .saddr = src4, .daddr = dst4 };
#pragma unroll
	for (int i = 0; i < 10; i++)
		sum += ((__u16 *)ip)[i];
	sum = (sum & 0xffff) + (sum >> 16);
	ip->check = ~(sum + (sum >> 16));
	return XDP_TX;
}

SEC("xdp")
int lower_bound_v6(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct ipv6hdr *ip = data + sizeof(struct ethhdr);
	struct bpf_fib_lookup fib = {
		.family = AF_INET6, .l4_protocol = IPPROTO_IPV6, .ifindex = ctx->ingress_ifindex,
	};
	struct ethhdr *eth;
	__u16 len;

	if ((void *)(ip + 1) > end || ip->version != 6)
		return XDP_PASS;
	len = bpf_ntohs(ip->payload_len) + sizeof(*ip);
	fib.tot_len = len + sizeof(*ip);
#pragma unroll
	for (int i = 0; i < 4; i++) {
		fib.ipv6_src[i] = src6[i];
		fib.ipv6_dst[i] = dst6[i];
	}
	if (bpf_fib_lookup(ctx, &fib, sizeof(fib), 0))
		return XDP_DROP;
	if (bpf_xdp_adjust_head(ctx, -(int)sizeof(*ip)))
		return XDP_DROP;
	eth = (void *)(long)ctx->data;
	end = (void *)(long)ctx->data_end;
	ip = (void *)(eth + 1);
	if ((void *)(ip + 1) > end)
		return XDP_DROP;
	__builtin_memcpy(eth->h_dest, fib.dmac, ETH_ALEN);
	__builtin_memcpy(eth->h_source, fib.smac, ETH_ALEN);
	eth->h_proto = bpf_htons(ETH_P_IPV6);
	*(__be32 *)ip = bpf_htonl(6u << 28);
	ip->payload_len = bpf_htons(len);
	ip->nexthdr = IPPROTO_IPV6;
	ip->hop_limit = 64;
#pragma unroll
	for (int i = 0; i < 4; i++) {
		ip->saddr.in6_u.u6_addr32[i] = fib.ipv6_src[i];
		ip->daddr.in6_u.u6_addr32[i] = dst6[i];
	}
	return XDP_TX;
}

/* The flow of an IPv4 frame with ports. -1: it is none. */
static __always_inline int flow_of(struct xdp_md *ctx, struct flow_tuple *t)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct iphdr *ip = data + sizeof(struct ethhdr);
	__be16 *ports = (void *)(ip + 1);

	if ((void *)(ports + 2) > end)
		return -1;
	t->src[10] = t->src[11] = t->dst[10] = t->dst[11] = 0xff;
	*(__be32 *)(t->src + 12) = ip->saddr;
	*(__be32 *)(t->dst + 12) = ip->daddr;
	t->sport = ports[0];
	t->dport = ports[1];
	t->proto = ip->protocol;
	return 0;
}

/* A flow table as the kernel has one to offer. */
struct lru_key {
	struct flow_tuple tuple;
	__u32 svc;
	__u32 pad;
};

struct lru_value {
	__u64 life;
	__u32 until;
	__u32 svc;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1024); /* set before loading */
	__type(key, struct lru_key);
	__type(value, struct lru_value);
} lru SEC(".maps");

SEC("xdp")
int lru_find(struct xdp_md *ctx)
{
	struct lru_key key = { .svc = 1 };
	struct lru_value *v;
	__u32 now = tick();

	if (flow_of(ctx, &key.tuple))
		return XDP_ABORTED;
	v = bpf_map_lookup_elem(&lru, &key);
	return v && (__s32)(v->until - now) >= 0 ? XDP_DROP : XDP_PASS;
}

SEC("xdp")
int lru_put(struct xdp_md *ctx)
{
	struct lru_key key = { .svc = 1 };
	struct lru_value v = { .life = 1, .until = tick() + 1000, .svc = 1 };

	if (flow_of(ctx, &key.tuple))
		return XDP_ABORTED;
	return bpf_map_update_elem(&lru, &key, &v, BPF_ANY) ? XDP_ABORTED : XDP_DROP;
}

/* Ours, with its keyed hash, since theirs hashes too. */
static __always_inline __u64 hash_of(const struct flow_tuple *t)
{
	const __u64 seed[2] = { 0x0123456789abcdef, 0xfedcba9876543210 };

	return hash_fields(seed, t, 5, 0);
}

SEC("xdp")
int table_find(struct xdp_md *ctx)
{
	struct flow_tuple t = {};

	if (flow_of(ctx, &t))
		return XDP_ABORTED;
	return find_flow(hash_of(&t), tick()) ? XDP_DROP : XDP_PASS;
}

SEC("xdp")
int table_put(struct xdp_md *ctx)
{
	struct entry e = { .life = 1, .svc = 1 };
	__u32 now = tick();

	if (flow_of(ctx, &e.tuple))
		return XDP_ABORTED;
	e.hash = hash_of(&e.tuple);
	e.until = now + 1000;
	/* As an update of the hash map, which searches too. */
	if (!find_flow(e.hash, now))
		put_flow(&e, now);
	return XDP_DROP;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";

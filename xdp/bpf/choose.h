/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#ifndef CHOOSE_H
#define CHOOSE_H

#define MAX_SERVER_ID  8
#define QUIC_LONG      0x80   /* in the first byte: a long header (RFC 9000 section 17.2) */
#define SPREAD	       0x9e3779b97f4a7c15ULL
#define LIMIT_SLACK    1000000 /* ns by which the clocks of two packets may be crossed */
#define CHOSEN(v)      ((v) << 16) /* a verdict where a backend id should be */
#define CHOSEN_ID(c)   ((c) & 0xffff)
#define CHOSEN_VERDICT(c) ((c) >> 16)

static __always_inline struct svc_table *table_of(__u32 svc_id)
{
	__u32 zero = 0;
	void *inner = bpf_map_lookup_elem(&svc, &svc_id);

	return inner ? bpf_map_lookup_elem(inner, &zero) : NULL;
}

/* Looks for a service; 0 if there is none. */
static __always_inline __u32 vip_of(const struct packet *p, __be16 port, __u8 proto)
{
	struct vip_key key = { .port = port, .proto = proto };
	__u32 *id;

	copy_ip6(key.addr, p->key.dst);
	id = bpf_map_lookup_elem(&vip, &key);
	return id ? *id : 0;
}

/*
 * The service of a packet to a VIP with these addr_flags. A fragment names no
 * port: it goes to the service of all ports, or to the one that stands for those
 * of its protocol.
 */
static __always_inline enum verdict find_service(struct packet *p, __u32 flags)
{
	__u32 id = 0;

	if (!p->fragment)
		id = vip_of(p, p->key.dport, p->key.proto);
	if (!id && flags & ADDR_ALL_PORTS && (p->fragment || p->key.dport))
		id = vip_of(p, 0, p->key.proto);
	if (id & VIP_FRAGMENTS && !p->fragment)
		id = 0;
	if (!id && flags & ADDR_ALL_PROTOCOLS)
		id = vip_of(p, 0, 0);
	if (!id)
		return PASS_NO_SERVICE;
	p->svc = id & VIP_ID_MASK;
	return p->svc ? VERDICT_NONE : DROP_FRAGMENT_PORTS;
}

/*
 * Takes one from a limit (GCRA): due is when the next one may come. Without a
 * lock: CPUs that meet here let one more pass, now and then. A limit never looks
 * further ahead than its burst and one more: what does was left by another, slower
 * one, which must not hold up who is allowed more now.
 */
static __always_inline int is_over(__u64 *due, __u64 now, const struct limit *l)
{
	__u64 at = *(volatile __u64 *)due;

	if (at < now)
		at = now;
	if (at - now > l->burst + l->interval + LIMIT_SLACK)
		at = now + l->burst;
	if (at - now > l->burst)
		return 1;
	*(volatile __u64 *)due = at + l->interval;
	return 0;
}

static __always_inline int source_is_over(const struct packet *p, __u64 now, const struct limit *l)
{
	struct source_key key = { .svc = p->svc };
	__u64 first = now + l->interval;
	__u64 *due;

	copy_ip6(key.addr, p->key.src);
	if (p->v6)
		__builtin_memset(key.addr + 8, 0, 8);
	due = bpf_map_lookup_elem(&syn_source, &key);
	if (due)
		return is_over(due, now, l);
	/* A full table limits nobody. */
	bpf_map_update_elem(&syn_source, &key, &first, BPF_ANY);
	return 0;
}

/* The source first: one of them must not eat up what all may have. */
static __always_inline enum verdict limit_syn(const struct packet *p, const struct svc_table *t)
{
	__u64 now = bpf_ktime_get_ns();
	__u64 *due;

	if (t->syn_source.interval && source_is_over(p, now, &t->syn_source))
		return DROP_SYN_LIMIT_SOURCE;
	if (!t->syn.interval)
		return VERDICT_NONE;
	due = bpf_map_lookup_elem(&syn_service, &p->svc);
	return due && is_over(due, now, &t->syn) ? DROP_SYN_LIMIT_SERVICE : VERDICT_NONE;
}

/* The backend that the connection id of a QUIC short header names, or 0. */
static __always_inline __u32 quic_backend(struct xdp_md *ctx, const struct packet *p,
					  const struct svc_table *t)
{
	struct server_key key = { .svc = p->svc };
	__u32 length = t->quic_length, offset = 1 + t->quic_offset;
	__u32 payload = p->l4 + sizeof(struct udphdr);
	struct backend *b;
	__u8 first = QUIC_LONG;
	__u32 *id;

	if (length < 1 || length > MAX_SERVER_ID || p->udp < sizeof(struct udphdr) + offset + length)
		return 0;
	if (bpf_xdp_load_bytes(ctx, payload, &first, 1) || first & QUIC_LONG)
		return 0;
	if (bpf_xdp_load_bytes(ctx, payload + offset, key.id, length))
		return 0;
	key.length = length;
	id = bpf_map_lookup_elem(&server_id, &key);
	if (!id)
		return 0;
	b = bpf_map_lookup_elem(&backend, id);
	if (!b || b->svc != p->svc || !(b->life & BACKEND_MEMBER))
		return 0;
	return *id;
}

static __always_inline int is_trackable(__u8 proto, __u8 affinity)
{
	if (proto == IPPROTO_TCP)
		return 1;
	if (proto != IPPROTO_UDP && proto != IPPROTO_ESP && proto != IPPROTO_GRE)
		return 0;
	return affinity != AFFINITY_NONE;
}

/*
 * Says whether a flow may still follow the backend of this life: one of this
 * service, the very one that was meant and not a later one of that id, and kept
 * for packets like this one: the SYN of a session is TCP, but no backend needs to
 * be kept for it, so one that drains does not get it.
 */
static __always_inline int may_follow(__u64 flow_life, const struct packet *p)
{
	int tcp = p->key.proto == IPPROTO_TCP;
	__u64 keep = BACKEND_MEMBER | (tcp ? BACKEND_KEEP_TCP : 0) | (tcp && !p->syn ? 0 : BACKEND_KEEP_OTHER);
	__u32 id = (__u32)flow_life;
	struct backend *b = bpf_map_lookup_elem(&backend, &id);
	__u64 life;

	if (!b || b->svc != p->svc)
		return 0;
	life = *(volatile __u64 *)&b->life;
	return life >> 32 == flow_life >> 32 && (life & keep) == keep;
}

/* What is searched for and written in the flow tables. */
struct search {
	__u64 hash;
	__u32 now;
	__u32 until;
	__u32 fields; /* that the tables know */
};

static __always_inline void fill_entry(struct entry *e, const struct search *s, const struct packet *p,
				       __u64 life)
{
	e->hash = s->hash;
	e->life = life;
	e->until = s->until;
	e->svc = p->svc;
	e->tuple = p->key;
	if (s->fields < 5)
		e->tuple.sport = e->tuple.dport = 0;
	if (s->fields < 3)
		e->tuple.proto = 0;
	if (s->fields < 2)
		__builtin_memset(e->tuple.dst, 0, sizeof(e->tuple.dst));
}

/* The second packet of a flow, and no SYN: it is not what a flood is made of. */
static __always_inline void establish(const struct packet *p, const struct search *s, __u32 place, __u64 life,
				      struct svc_count *n)
{
	struct entry e;

	fill_entry(&e, s, p, life);
	if (place)
		write_at(place, &e);
	else
		n->evicted += put_flow(&e, s->now);
	n->established++;
}

/* The backend that the flow tables remember; 0 if none. */
static __always_inline __u32 tracked(const struct packet *p, const struct search *s, __u32 place,
				     struct svc_count *n)
{
	__u64 life = life_at(place, s->hash);
	struct half_flow *h;

	if (life && may_follow(life, p)) {
		if (p->kind == KIND_FLOW)
			renew(place, s->until);
		n->table++;
		return life;
	}
	h = half_of(s->hash);
	if (!h)
		return 0;
	life = life_in(h, s->hash, s->now);
	if (!life || !may_follow(life, p))
		return 0;
	n->half++;
	if (p->kind != KIND_FLOW)
		return life;
	/* A forged source can send as many SYNs of a session as it likes. */
	if (p->syn) {
		h->until = s->until;
		return life;
	}
	forget_half(h);
	establish(p, s, place, life, n);
	return life;
}

/* Remembers a new flow, in the place that its hash has or with the half-open. */
static __always_inline void remember(const struct packet *p, const struct search *s, __u32 place, __u32 id,
				     struct svc_count *n)
{
	struct backend *b = bpf_map_lookup_elem(&backend, &id);
	struct entry e;

	if (!b)
		return;
	fill_entry(&e, s, p, b->life >> 32 << 32 | id);
	if (place) {
		write_at(place, &e);
		return;
	}
	put_half(&e);
	n->opened++;
}

/* The backend of the ring's slot. */
static __noinline __u32 from_ring(const struct svc_table *t, __u64 hash)
{
	__u32 at = (__u32)hash % RING_SIZE, id;
	struct backend *b;

	if (!t->n_backends)
		return CHOSEN(DROP_NO_BACKEND);
	/* The compiler, sure of the range, would drop the check that the verifier wants. */
	asm volatile("" : "+r"(at));
	if (at >= RING_SIZE)
		return CHOSEN(DROP_STALE_BACKEND);
	id = t->slot[at];
	b = bpf_map_lookup_elem(&backend, &id);
	if (!b || !(b->life & BACKEND_MEMBER))
		return CHOSEN(DROP_STALE_BACKEND);
	return id;
}

/*
 * Chooses the backend of a packet of service p->svc, whose table is t: its id, or
 * a verdict as CHOSEN. What the flow tables need is written there.
 */
__noinline __u32 choose(struct xdp_md *ctx, struct packet *p, const struct svc_table *t)
{
	struct svc_count *n;
	struct search s = {};
	__u32 fields, place = 0, id;
	__u64 ring;
	int track, fresh;

	if (!p || !t)
		return CHOSEN(DROP_NO_TABLE);
	n = bpf_map_lookup_elem(&svc_count, &p->svc);
	if (!n)
		return CHOSEN(DROP_NO_TABLE);
	n->packets++;
	n->bytes += p->len;
	n->icmp_error += p->kind == KIND_ERROR;
	n->fragment += !!p->fragment;
	if (p->syn && (t->syn.interval || t->syn_source.interval)) {
		enum verdict v = limit_syn(p, t);

		if (v != VERDICT_NONE) {
			n->limited++;
			return CHOSEN(v);
		}
	}
	fields = t->affinity ? t->affinity : AFFINITY_5TUPLE;
	ring = hash_fields(t->seed, &p->key, fields, p->v6);
	s.fields = t->flags & SVC_PER_SESSION ? fields : AFFINITY_5TUPLE;
	p->hash = s.fields == fields ? ring : hash_fields(t->seed, &p->key, s.fields, p->v6);
	if (t->flags & SVC_QUIC && p->key.proto == IPPROTO_UDP && p->kind == KIND_FLOW && !p->fragment) {
		id = quic_backend(ctx, p, t);
		if (id) {
			n->server_id++;
			return id;
		}
	}
	track = is_trackable(p->key.proto, t->affinity);
	fresh = p->syn && s.fields == AFFINITY_5TUPLE;
	if (track) {
		s.hash = p->hash ^ p->svc * SPREAD;
		s.hash += !s.hash;
		s.now = tick();
		s.until = s.now + t->idle;
		place = find_flow(s.hash, s.now);
		id = fresh ? 0 : tracked(p, &s, place, n);
		if (id)
			return id;
	}
	id = from_ring(t, ring);
	if (CHOSEN_VERDICT(id))
		return id;
	n->ring++;
	/* A reset ends a flow: it must not push another out of the table. */
	if (track && !p->rst && p->kind == KIND_FLOW)
		remember(p, &s, place, id, n);
	return id;
}

#endif

/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#ifndef MAPS_H
#define MAPS_H

/*
 * Everything that user space and the program share. A change of a layout here
 * needs a new schema number in the Go side: it names the directory of the pins.
 *
 * All addresses are 16 bytes, IPv4 as ::ffff:a.b.c.d, so that no IPv4 address
 * can alias an IPv6 one; IPv6 packets that carry such an address are refused
 * (see parse.h).
 */
#define MAX_SERVICES 1024  /* ids: twice what is used at once, so that all can change */
#define MAX_BACKENDS 16384 /* the same */
#define RING_SIZE    65537

/* What an address of ours is. */
enum addr_kind {
	ADDR_VIP = 1,
	ADDR_TUNNEL = 2,
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, __u8[16]);
	__type(value, __u32); /* enum addr_kind */
} addr SEC(".maps");

/* Who may send us encapsulated packets. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, __u8[16]);
	__type(value, __u32); /* not used */
} trusted SEC(".maps");

struct vip_key {
	__u8 addr[16];
	__be16 port;
	__u8 proto;
	__u8 pad;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_SERVICES);
	__type(key, struct vip_key);
	__type(value, __u32); /* service id, 1 .. MAX_SERVICES - 1 */
} vip SEC(".maps");

enum encap {
	ENCAP_GUE = 1,
	ENCAP_IPIP = 2,
};

/* A service's policy and ring: one element, so that no packet sees a mix. */
struct svc_table {
	__u64 seed[2]; /* keys the flow hash, as the ring was keyed */
	__u8 src6[16]; /* outer sources of this node */
	__be32 src4;
	__u32 n_backends; /* in the ring; 0: take no new flows */
	__u32 encap;	  /* enum encap */
	__u32 pad[5];
	__u32 slot[RING_SIZE]; /* backend ids */
	__u32 tail;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, MAX_SERVICES);
	__type(key, __u32);
	__array(
		values, struct {
			__uint(type, BPF_MAP_TYPE_ARRAY);
			__uint(max_entries, 1);
			__type(key, __u32);
			__type(value, struct svc_table);
		});
} svc SEC(".maps");

enum backend_state {
	BACKEND_NONE = 0, /* not used, or removed: no flow may follow it */
	BACKEND_ACTIVE = 1,
	BACKEND_DRAIN = 2, /* keeps its flows; is in no ring */
};

enum backend_flags {
	BACKEND_LOCAL = 1, /* this box */
	BACKEND_V6 = 2,	   /* the outer header is IPv6 */
};

/*
 * One backend of one service: a box that serves two services has two entries,
 * so leaving one service does not touch its flows of the other.
 */
struct backend {
	__u8 addr[16];
	__u32 svc;
	__u32 flags; /* enum backend_flags */
	__u64 life;  /* generation << 32 | state: one word, read and written whole */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_BACKENDS);
	__type(key, __u32); /* backend id; 0 is none */
	__type(value, struct backend);
} backend SEC(".maps");

/* The first 40 bytes are what is hashed: the same on every node. */
struct flow_key {
	__u8 src[16];
	__u8 dst[16];
	__be16 sport;
	__be16 dport;
	__u8 proto;
	__u8 pad[3];
	__u32 svc;
	__u32 pad2;
} __attribute__((aligned(8)));

struct flow {
	__u32 backend;
	__u32 gen; /* of the backend when the flow was put here */
	__u64 pad;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1 << 16); /* set before loading */
	__type(key, struct flow_key);
	__type(value, struct flow);
} flow SEC(".maps");

struct count {
	__u64 packets;
	__u64 bytes; /* from the inner IP header on, without Ethernet padding */
};

struct svc_count {
	__u64 packets;
	__u64 bytes;
	__u64 flows; /* that took a place in the flow table */
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, MAX_SERVICES);
	__type(key, __u32);
	__type(value, struct svc_count);
} svc_count SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, MAX_BACKENDS);
	__type(key, __u32);
	__type(value, struct count);
} backend_count SEC(".maps");

struct verdicts {
	__u64 received;
	__u64 left[256]; /* by enum verdict */
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct verdicts);
} verdict_count SEC(".maps");

/*
 * The next two are user space's memory: who adopts the pins learns from them
 * which name each id has, so that ids and thereby flows stay as they are.
 */
struct svc_name {
	__u8 name[32]; /* zero-padded; all zero: free */
	__u8 vip[16];
	__be16 port;
	__u8 proto;
	__u8 pad[5];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_SERVICES);
	__type(key, __u32);
	__type(value, struct svc_name);
} svc_name SEC(".maps");

struct backend_name {
	__u8 name[32];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_BACKENDS);
	__type(key, __u32);
	__type(value, struct backend_name);
} backend_name SEC(".maps");

#endif

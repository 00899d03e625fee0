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
#define MAX_MACS     16
#define TICK_SHIFT   30 /* a tick is 2^30 ns of CLOCK_MONOTONIC: 1.07 s */

/* What an address of ours is. */
enum addr_kind {
	ADDR_VIP = 1,
	ADDR_TUNNEL = 2,
};

/* In the same word: which services with wildcards the VIP has. */
enum addr_flags {
	ADDR_ALL_PORTS = 0x100,	    /* one of all ports of a protocol, or one for fragments */
	ADDR_ALL_PROTOCOLS = 0x200, /* one of everything */
};
#define ADDR_KIND_MASK 0xff

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, __u8[16]);
	__type(value, __u32); /* enum addr_kind | enum addr_flags */
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
	__be16 port; /* 0: all ports */
	__u8 proto;  /* 0: all protocols */
	__u8 pad;
};

/*
 * A service id, 1 .. MAX_SERVICES - 1, or'ed with VIP_FRAGMENTS in an entry of
 * port 0 that is there for fragments alone, since they name no port. In such an
 * entry id 0 says that the services of that protocol differ in their backends.
 */
#define VIP_FRAGMENTS 0x80000000
#define VIP_ID_MASK   0x0000ffff

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4 * MAX_SERVICES);
	__type(key, struct vip_key);
	__type(value, __u32);
} vip SEC(".maps");

enum encap {
	ENCAP_GUE = 1,
	ENCAP_IPIP = 2,
};

/* How many fields of a packet choose its backend: edge.Affinity. */
enum affinity {
	AFFINITY_NONE = 0, /* 5-tuple; only TCP is tracked */
	AFFINITY_SRC = 1,
	AFFINITY_SRC_DST = 2,
	AFFINITY_SRC_DST_PROTO = 3,
	AFFINITY_5TUPLE = 5,
};

enum svc_flags {
	SVC_PER_SESSION = 1, /* the flow table knows the tuple of the affinity */
	SVC_QUIC = 2,
};

/* A rate of SYNs, as GCRA: both are 0 without a limit. In nanoseconds. */
struct limit {
	__u64 interval; /* between two SYNs at the rate */
	__u64 burst;	/* interval * (burst - 1) */
};

/* A service's policy and ring: one element, so that no packet sees a mix. */
struct svc_table {
	__u64 seed[2]; /* keys the flow hash, as the ring was keyed */
	__u8 src6[16]; /* outer sources of this node */
	__be32 src4;
	__u32 n_backends; /* in the ring; 0: take no new flows */
	__u32 idle;	  /* ticks that a flow is remembered */
	__u32 pad0;
	struct limit syn;	 /* of the service */
	struct limit syn_source; /* of one source */
	__u8 encap;		 /* enum encap */
	__u8 affinity;		 /* enum affinity */
	__u8 flags;		 /* enum svc_flags */
	__u8 quic_offset;	 /* of the server id in the connection id */
	__u8 quic_length;
	__u8 pad[27];
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

/*
 * The lower half of a backend's life: what it may be given. The SYN of a session
 * that it has needs both of the last two: it is TCP, and new.
 */
enum backend_state {
	BACKEND_NONE = 0,	/* not used, or removed: no flow may follow it */
	BACKEND_MEMBER = 1,	/* of the service now */
	BACKEND_KEEP_TCP = 2,	/* TCP flows that it has may follow it */
	BACKEND_KEEP_OTHER = 4, /* flows of any other protocol */
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
	__u64 life;  /* generation << 32 | enum backend_state: one word, read and written whole */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_BACKENDS);
	__type(key, __u32); /* backend id; 0 is none */
	__type(value, struct backend);
} backend SEC(".maps");

/* Which backend a server id of QUIC names. */
struct server_key {
	__u32 svc;
	__u8 length;
	__u8 pad[3];
	__u8 id[8]; /* length bytes, zero-padded */
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_BACKENDS);
	__type(key, struct server_key);
	__type(value, __u32);
} server_id SEC(".maps");

/*
 * The flow tables. An access to a large map waits for memory, and for the page
 * tables on the way there: what counts is how many of its lines and pages a packet
 * touches. So the table of established flows, flow, has only what a packet needs,
 * and what people want to know of a flow is in another map.
 *
 * The hash is keyed and 64 bits wide: it stands for the flow.
 */
struct flow_tuple {
	__u8 src[16];
	__u8 dst[16];
	__be16 sport;
	__be16 dport;
	__u8 proto;
	__u8 pad[3];
};

/*
 * Buckets of eight ways: a line to search and one beside it. A flow may be in
 * either of the two buckets that its hash names. One word says which flow has which
 * backend, so that whatever two CPUs write into one way at the same time, nobody
 * takes one flow's backend for the other's: at the worst the generation is not that
 * of the backend, and the flow is not followed.
 */
#define WAYS	8
#define ID_BITS 16

struct flow_term {
	__u32 until;	  /* tick after which the way is free */
	__u32 generation; /* of the backend */
};

struct flow_bucket {
	__u64 flow[WAYS]; /* hash << ID_BITS | backend id; 0: free */
	struct flow_term term[WAYS];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1024); /* set before loading */
	__type(key, __u32);
	__type(value, struct flow_bucket);
} flow SEC(".maps");

/* For people. The flow in way w of bucket b is element b * WAYS + w. */
struct flow_detail {
	__u64 hash; /* 0: being written */
	__u32 svc;
	__u32 pad;
	struct flow_tuple tuple;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1024 * WAYS); /* set before loading */
	__type(key, __u32);
	__type(value, struct flow_detail);
} flow_detail SEC(".maps");

/*
 * Flows that have shown one packet: what a flood fills. Each has one place only,
 * a line. Of a mix of two the check does not fit.
 */
struct half_flow {
	__u64 check; /* hash ^ life */
	__u64 life;  /* generation of the backend << 32 | backend id; 0: free, or being written */
	__u32 until; /* tick after which the place is free */
	__u32 svc;
	struct flow_tuple tuple;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1024); /* set before loading */
	__type(key, __u32);
	__type(value, struct half_flow);
} half SEC(".maps");

/* Sizes of the two: constants for the verifier. */
const volatile __u32 flow_buckets = 1024;
const volatile __u32 half_places = 1024;

/* What this box is, and what it is asked to do besides forwarding. */
struct host {
	__u64 mac[MAX_MACS]; /* MAC addresses of ours, as the first 6 bytes in memory; 0 ends them */
	__u32 blocked;	     /* there is a blocklist */
	__u32 sample;	     /* capture one of so many packets; 0: none */
	__u32 sample_actions; /* of which actions: 1 << enum action */
	__u32 vlans;	      /* there are VLAN sub-interfaces */
	struct limit too_big; /* answers to packets that are too big, of each CPU */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct host);
} host SEC(".maps");

/* VLAN sub-interfaces: the tags of the packets that they take and send. */
struct vlan_key {
	__u32 ifindex; /* of the interface below */
	__u16 outer;   /* VLAN ids */
	__u16 inner;   /* 0: one tag */
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, struct vlan_key);
	__type(value, __u32); /* ifindex of the sub-interface */
} vlan_in SEC(".maps");

struct vlan_tags {
	__be16 proto[2]; /* ethertype of the tag, outer first; 0: no tag */
	__be16 tci[2];
};

struct vlan_link {
	__u32 ifindex; /* of the interface below */
	struct vlan_tags tags;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, __u32); /* ifindex of the sub-interface */
	__type(value, struct vlan_link);
} vlan_out SEC(".maps");

/* Source prefixes whose packets to a VIP are dropped; swapped whole. */
struct prefix {
	__u32 bits; /* of 128: IPv4 as ::ffff:a.b.c.d */
	__u8 addr[16];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, 1);
	__type(key, __u32);
	__array(
		values, struct {
			__uint(type, BPF_MAP_TYPE_LPM_TRIE);
			__uint(map_flags, BPF_F_NO_PREALLOC);
			__uint(max_entries, 16 << 20);
			__type(key, struct prefix);
			__type(value, __u32); /* not used */
		});
} blocklist SEC(".maps");

/* What rules out most sources without a search: see block.h. */
#define BLOCK_ORDER  24
#define BLOCK_BITS   (1 << BLOCK_ORDER) /* of each family, IPv4 first */
#define BLOCK_SPREAD 0x9e3779b97f4a7c15ULL
#define BLOCK_TELL32 (1ULL << 63) /* tells a /32 from the /48 that continues it with zeros */

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, 1);
	__type(key, __u32);
	__array(
		values, struct {
			__uint(type, BPF_MAP_TYPE_ARRAY);
			__uint(map_flags, BPF_F_MMAPABLE);
			__uint(max_entries, 2 * BLOCK_BITS / 64);
			__type(key, __u32);
			__type(value, __u64);
		});
} block_filter SEC(".maps");

/* When the next SYN is due (GCRA), in ns of CLOCK_MONOTONIC. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_SERVICES);
	__type(key, __u32);
	__type(value, __u64);
} syn_service SEC(".maps");

struct source_key {
	__u8 addr[16]; /* of IPv6 the upper 8 bytes */
	__u32 svc;
	__u32 pad;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1 << 16);
	__type(key, struct source_key);
	__type(value, __u64);
} syn_source SEC(".maps");

/* GCRA of the answers to packets that are too big. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} too_big_due SEC(".maps");

struct count {
	__u64 packets;
	__u64 bytes; /* from the inner IP header on, without Ethernet padding */
};

struct svc_count {
	__u64 packets;
	__u64 bytes;
	/* What chose the backend. */
	__u64 table;
	__u64 half;
	__u64 ring;
	__u64 server_id;
	/* What else was seen. */
	__u64 icmp_error;
	__u64 fragment;
	__u64 limited;
	/* What became of flows. */
	__u64 opened;	   /* took a place in half */
	__u64 established; /* went from there to flow */
	__u64 evicted;	   /* were alive and lost their place in flow */
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

/* One captured packet, as it left. */
#define SNAP_LENGTH 256

struct sample {
	__u64 time; /* ns of CLOCK_MONOTONIC */
	__u32 ifindex; /* where it came in */
	__u32 length;  /* of the frame */
	__u32 captured;
	__u32 verdict;
	__u8 data[SNAP_LENGTH];
};

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 20);
} samples SEC(".maps");

/*
 * The rest is user space's memory: who adopts the pins learns from it which name
 * each id has, so that ids and thereby flows stay as they are.
 */
struct svc_name {
	__u8 name[32]; /* zero-padded; all zero: free */
	__u8 vip[16];
	__be16 port;
	__u8 proto;
	__u8 pool; /* that new flows go to: 0 primary, 1 failover */
	__u8 pad[4];
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

/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#ifndef REASONS_H
#define REASONS_H

/*
 * How a packet leaves: the action in the upper two bits, the reason in the
 * lower six. The Go side reads the names from the BTF of this enum: what stands
 * before the first underscore is the action, the rest in lower case the reason.
 *
 * Append only: a new program counts into the pinned counters of the old one.
 */
enum verdict {
	VERDICT_NONE = 0, /* not decided yet; never leaves */

	PASS_NOT_IP = 0x01, /* neither IPv4 nor IPv6, or no whole Ethernet header */
	PASS_VLAN,	    /* more than two tags, or one that is cut off */
	PASS_MULTICAST_MAC, /* for more than us: never forwarded */
	PASS_TRUNCATED_IP,  /* too short to say whom it is for */
	PASS_NOT_VIP,	    /* the destination is no VIP, or our own and no tunnel */
	PASS_ICMP,	    /* to a VIP: neither an echo request nor an error */
	PASS_NO_SERVICE,    /* a VIP's address, no service on that port and protocol */
	PASS_LOCAL,	    /* the backend is this box */
	PASS_DECAP,	    /* came in a tunnel, for a service */
	PASS_FOREIGN_MAC,   /* for another box: never forwarded */

	TX_BACKEND = 0x41, /* encapsulated, out where it came in */
	TX_ECHO,	   /* an echo request to a VIP, answered */
	TX_TOO_BIG,	   /* "fragmentation needed" or "packet too big", answered */

	REDIRECT_BACKEND = 0x81, /* encapsulated, out of another interface */

	DROP_BAD_VERSION = 0xc1, /* the version is not that of the ethertype */
	DROP_BAD_HEADER,	 /* IPv4 header shorter than 20 bytes */
	DROP_BAD_LENGTH,	 /* the IP length is not that of the frame */
	DROP_TRUNCATED,		 /* ends inside a header */
	DROP_BAD_SOURCE,	 /* a source that no host has */
	DROP_BAD_TCP,		 /* data offset out of the packet */
	DROP_BAD_UDP,		 /* UDP length out of the packet */
	DROP_EXT_HEADERS,	 /* more than six IPv6 extension headers, or one in fragments */
	DROP_FRAGMENT,		 /* tunnel traffic in fragments */
	DROP_NO_TABLE,		 /* a VIP without a table: cannot happen */
	DROP_NO_BACKEND,	 /* nobody takes new flows */
	DROP_STALE_BACKEND,	 /* the ring names a removed one: cannot happen */
	DROP_TTL,		 /* would be zero at the backend: a loop */
	DROP_TOO_BIG,		 /* does not fit with its outer headers, and none may be told */
	DROP_NO_HEADROOM,	 /* the driver leaves no room for outer headers */
	DROP_FIB_BLACKHOLE,	 /* of the route to the backend, as are the rest */
	DROP_FIB_UNREACHABLE,	 /* ICMP-unreachable route, or none */
	DROP_FIB_PROHIBIT,	 /* administratively prohibited */
	DROP_FIB_NOT_FORWARDED,	 /* ends on this box, or there is none (IPv6) */
	DROP_FIB_FORWARDING_OFF, /* forwarding is off on the ingress interface */
	DROP_FIB_TUNNEL,	 /* the route encapsulates by itself */
	DROP_FIB_NO_NEIGHBOUR,	 /* the next hop's MAC address is not known */
	DROP_FIB_ERROR,		 /* the lookup itself failed */
	DROP_DECAP_UNTRUSTED,	 /* tunnel traffic from a stranger */
	DROP_DECAP_MALFORMED,	 /* tunnel traffic that does not hold a packet */
	DROP_DECAP_NOT_VIP,	 /* held a packet for no service of ours */
	DROP_BLOCKED,		 /* its source is in the blocklist */
	DROP_SYN_LIMIT_SERVICE,	 /* more new connections than the service may have */
	DROP_SYN_LIMIT_SOURCE,	 /* more new connections than one source may open */
	DROP_TOO_BIG_LIMITED,	 /* too big, and enough have been told for now */
	DROP_FRAGMENT_PORTS,	 /* its services differ, and a fragment names no port */
	DROP_ICMP_QUOTE,	 /* an error that does not quote a packet of that VIP */
};

#define VERDICT_ACTION(v) ((v) >> 6 & 3)

enum action {
	ACTION_PASS,
	ACTION_TX,
	ACTION_REDIRECT,
	ACTION_DROP,
};

#endif

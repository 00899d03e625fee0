package xdp

//go:generate go tool bpf2go -cc clang-14 -strip llvm-strip-14 -target bpfel -go-package xdp -type svc_table -type verdict -type prefix -type sample -cflags "-O2 -mcpu=v3 -Wall -Werror -fno-strict-aliasing -I/usr/include/x86_64-linux-gnu" edge bpf/edge.c

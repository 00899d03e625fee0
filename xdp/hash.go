package xdp

import (
	"encoding/binary"
	"time"

	"github.com/catchment-dev/edge/xdp/model"
)

// seedWords splits a seed as the program reads it.
func seedWords(seed [16]byte) [2]uint64 {
	return [2]uint64{binary.LittleEndian.Uint64(seed[:8]), binary.LittleEndian.Uint64(seed[8:])}
}

// netOrder turns a port into the number that a __be16 of the program reads as
// on this little-endian machine, and back.
func netOrder(port uint16) uint16 { return port<<8 | port>>8 }

// nativeBytes are the bytes of a __be32 of the program, as they are in a packet.
func nativeBytes(a uint32) (b [4]byte) {
	binary.NativeEndian.PutUint32(b[:], a)
	return b
}

func modelLimit(interval, burst uint64) model.Limit {
	return model.Limit{Interval: time.Duration(interval), Burst: time.Duration(burst)}
}

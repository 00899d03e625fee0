package http1

import (
	"bufio"
	"strconv"
)

// The writers leave it to bw to remember an error: the caller sees it when it
// flushes.

// WriteRequest writes a request's head. The header must hold the Host and the
// framing.
func WriteRequest(bw *bufio.Writer, method, target string, h Header) {
	bw.WriteString(method)
	bw.WriteByte(' ')
	bw.WriteString(target)
	bw.WriteString(" HTTP/1.1\r\n")
	writeFields(bw, h)
}

// WriteResponse writes a response's head. The header must hold the framing.
func WriteResponse(bw *bufio.Writer, status int, text string, h Header) {
	bw.WriteString("HTTP/1.1 ")
	bw.WriteString(strconv.Itoa(status))
	bw.WriteByte(' ')
	bw.WriteString(text)
	bw.WriteString("\r\n")
	writeFields(bw, h)
}

// WriteChunk writes p as one chunk; an empty p is not written, since it would
// end the body.
func WriteChunk(bw *bufio.Writer, p []byte) {
	if len(p) == 0 {
		return
	}
	bw.WriteString(strconv.FormatInt(int64(len(p)), 16))
	bw.WriteString("\r\n")
	bw.Write(p)
	bw.WriteString("\r\n")
}

// WriteLastChunk ends a chunked body.
func WriteLastChunk(bw *bufio.Writer, trailer Header) {
	bw.WriteString("0\r\n")
	writeFields(bw, trailer)
}

func writeFields(bw *bufio.Writer, h Header) {
	for _, f := range h {
		bw.WriteString(f.Name)
		bw.WriteString(": ")
		bw.WriteString(f.Value)
		bw.WriteString("\r\n")
	}
	bw.WriteString("\r\n")
}

package broken

import "testing"

func TestBroken(*testing.T) { nothing() }

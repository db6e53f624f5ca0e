package contract

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// ParseMemory returns the memory for items in MiB that a value of MemoryAnnotation asks for: its first word.
func ParseMemory(annotation string) (megabytes int64, err error) {
	number, _, _ := strings.Cut(annotation, " ")
	megabytes, err = strconv.ParseInt(number, 10, 64)
	if err != nil || megabytes <= 0 || megabytes > math.MaxInt64>>20 {
		return 0, fmt.Errorf("the annotation of the pod has no memory in MiB: %q", annotation)
	}
	return megabytes, nil
}

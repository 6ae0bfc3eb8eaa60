# Which sources are compiled once, and which once per instruction set.
#
# An ISA source puts everything in `namespace octavo::OCTAVO_ISA_NS` (scalar, avx2, avx512vnni, avx512bf16) or in an
# anonymous namespace, and includes no header that emits inline functions with external linkage.
file(GLOB OCTAVO_ISA_SOURCES CONFIGURE_DEPENDS
     "${CMAKE_SOURCE_DIR}/native/src/linear*.cpp"
     "${CMAKE_SOURCE_DIR}/native/src/quantize*.cpp"
     "${CMAKE_SOURCE_DIR}/native/src/kernels/*.cpp")
file(GLOB OCTAVO_CORE_SOURCES CONFIGURE_DEPENDS
     "${CMAKE_SOURCE_DIR}/native/src/pack*.cpp"
     "${CMAKE_SOURCE_DIR}/native/src/runtime/*.cpp")
